"""The options of the ``lm`` engine (``docs/guide/engines.md`` says what each does), and the choice of its back end."""

from __future__ import annotations

from typing import Sequence

from edgeserve.config.gone import GONE
from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import LaneInfo
from edgeserve.engines.lm import ENDINGS, backend_of
from edgeserve.engines.lm.generation import SAMPLING_BOUNDS, Generation
from edgeserve.engines.lm.sampling import Sampling
from edgeserve.engines.lm.step_loop import PREFILL_TOKENS_MAX
from edgeserve.engines.lm.turns import TOKENS_MIN
from edgeserve.engines.options import Options
from edgeserve.errors import ConfigError, nearest
from edgeserve.units import NS_PER_MS

KNOWN_OPTIONS = (
    "backend",
    "context",
    "max_tokens",
    *SAMPLING_BOUNDS,
    "top_k",
    "repeat_last_n",
    "stop",
    "seed",
    "chat",
    "threads",
    "prefill_tokens",
    "turn",
    "gpu_layers",
    "type_k",
    "type_v",
    "flash_attn",
    "ubatch",
    "long_conversation",
    "precision",
    "prefix_cache",
    "shared_prefix",
)

BACKENDS = {
    "onnx": ("edgeserve.engines.lm.onnx_backend", "lm"),
    "llama.cpp": ("edgeserve.engines.lm.llama_backend", "lm-llama"),
    "torch": ("edgeserve.engines.lm.transformers_backend", "lm-torch"),
}
"""Name -> the module that has ``make(model, path, options, lanes)``, and the extra that installs its library."""

SERVER = "openai"
"""The back end that is an engine of its own: a server has the model."""

WENT = "onnx-encoder"
"""The back end that earlier versions had for models with an encoder."""

MAX_TOKENS = 256
"""The default number of an answer's tokens: a long paragraph."""

CONTEXT_MIN = 8

REFUSE, SHORTEN = "refuse", "shorten"

TURN_NS = 100 * NS_PER_MS
"""The default bound on a turn that reads prompts where other models, which wait for it, are on the lane. A
turn of a model alone on its lanes reads :data:`PREFILL_TOKENS_MAX` tokens: short parts take longer per token."""


def defaults_of(options: Options) -> Generation:
    """The settings of requests that give none."""
    return Generation(
        (),
        Sampling(
            top_k=options.integer("top_k", 0, 0),
            repeat_last_n=options.integer("repeat_last_n", -1, -1),
            biases=(),
            **{
                name: options.number(name, getattr(Sampling(), name), low, high)
                for name, (low, high) in SAMPLING_BOUNDS.items()
            },
        ),
        options.integer("max_tokens", MAX_TOKENS, 1),
        options.texts("stop"),
        False,
        options.integer("seed", 0, 0) if "seed" in options else None,
    )


def shortens(options: Options) -> bool:
    """True if a conversation that does not fit into the context loses its oldest turns; else it is refused."""
    choice = options.text("long_conversation", REFUSE)
    if choice not in (REFUSE, SHORTEN):
        raise ConfigError(f"{options.where('long_conversation')} = {choice!r}{nearest(choice, (REFUSE, SHORTEN))}")
    return choice == SHORTEN


def prefill_tokens_of(options: Options, lanes: Sequence[LaneInfo]) -> int:
    """The tokens of prompts that a turn reads at most; 0: as many as fit into ``turn``, by a measurement."""
    if "prefill_tokens" in options:
        return options.integer("prefill_tokens", 0, TOKENS_MIN)
    alone = bool(lanes) and all(lane.models == 1 for lane in lanes)
    return PREFILL_TOKENS_MAX if alone and "turn" not in options else 0


def chosen_backend(model: ModelConfig, options: Options) -> str:
    """The name of the model's back end. Raises :class:`ConfigError` where neither the file nor an option names one."""
    options.text("backend")
    name = backend_of(model)
    if name == WENT:
        raise ConfigError(f"{options.where('backend')} = {name!r}: there is no such back end any more; {GONE[WENT]}")
    if not name:
        went = f"; {GONE[WENT]}" if model.file.lower().endswith(".json") else ""
        raise ConfigError(
            f"[model.{model.name}] file = {model.file!r}: expected a name that ends in "
            f"{', '.join(ENDINGS)}, or options.backend = one of {', '.join((*BACKENDS, SERVER))}{went}"
        )
    if name not in BACKENDS:
        raise ConfigError(f"{options.where('backend')} = {name!r}{nearest(name, (*BACKENDS, SERVER))}")
    return name
