"""The behaviour of language models in a simulation whose scenario says nothing of it: answers come step by step, of
lengths that are given, or as long as the model allows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Collection, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from edgeserve.config.profiles import Profile
from edgeserve.config.schema import Config, ModelConfig
from edgeserve.errors import ConfigError, nearest
from edgeserve.lognormal import Lognormal
from edgeserve.sim.scenario import CONTINUOUS, Scenario, TruthConfig, WorkloadConfig
from edgeserve.sim.sequence_runs import hint_of
from edgeserve.sim.spreads import Hint, Spread

ENGINE = "lm"
"""The engine of language models: what a simulation knows without making an engine."""

ANSWER_HINT = "answer_tokens"
"""The hint that says how long an answer really is; the scheduler is not told."""

ANSWER_TOKENS = 256
"""The longest answer of a model whose ``options.max_tokens`` does not say: the default of the engine."""

PROMPT_TOKENS = 100.0
"""Mean length of prompts where nothing says it: a question with its instructions."""

SIGMA = 0.6
"""Deviation of the logarithm of lengths of which the mean is given: between those of questions to a hub and of chats
(docs/research/language-models.md)."""

PREFILL_STEPS = 2.0
"""Reading a prompt, in steps, where no profile has it: what the policy assumes (docs/guide/policies/rtlm.md)."""


class TokenCounts(NamedTuple):
    """Mean tokens of an app's prompts and answers."""

    prompt: float
    answer: float


def read_lengths(words: Sequence[str], apps: Collection[str]) -> Dict[str, TokenCounts]:
    """App -> the lengths that ``--tokens APP=PROMPT/ANSWER`` gives. Raises :class:`ConfigError`."""
    found: Dict[str, TokenCounts] = {}
    for word in words:
        app, _, text = word.partition("=")
        prompt, _, answer = text.partition("/")
        try:
            lengths = TokenCounts(float(prompt), float(answer))
        except ValueError:
            lengths = TokenCounts(0.0, 0.0)
        if not (1 <= lengths.prompt <= 1e6 and 1 <= lengths.answer <= 1e6):
            raise ConfigError(
                f"--tokens {word!r}: expected the mean tokens of an app's prompts and answers, such as "
                f"--tokens {app or 'APP'}=60/45"
            )
        if app not in apps:
            raise ConfigError(f"--tokens {word!r}: there is no app {app!r}{nearest(app, apps)}")
        if app in found:
            raise ConfigError(f"--tokens {word!r}: another --tokens says the same of {app}; leave one out")
        found[app] = lengths
    return found


def with_language_models(
    scenario: Scenario, models: Collection[str], profiles: Sequence[Profile], lengths: Mapping[str, TokenCounts]
) -> Tuple[Scenario, List[str]]:
    """The scenario with ``models`` that answer step by step, in continuous batches, where it has no ``[truth.*]`` of
    them; and what was assumed of their lengths, a sentence per app.

    Steps and reading take what the profiles say. A workload's own ``answer_tokens`` and ``tokens`` count; else those of
    ``lengths``; else each answer is as long as its model allows, and prompts have :data:`PROMPT_TOKENS`.
    """
    config = scenario.config
    models = [name for name in models if name not in scenario.truths]
    read = {profile.model for profile in profiles if all(lane.prompt_token_ns for lane in profile.lanes.values())}
    truths = {name: _truth(config.models[name], name in read) for name in models}
    notes: Dict[str, str] = {}
    workloads = [_with_lengths(item, config, truths, lengths, notes) for item in scenario.workloads]
    return replace(scenario, truths={**scenario.truths, **truths}, workloads=tuple(workloads)), list(notes.values())


def language_models(config: Config) -> List[str]:
    """The models that are language models by the name of their engine."""
    return [model.name for model in config.models.values() if model.engine == ENGINE]


def _truth(model: ModelConfig, is_read: bool) -> TruthConfig:
    options = model.options
    return TruthConfig(
        model.name,
        batching=CONTINUOUS,
        steps_hint=ANSWER_HINT,
        steps_max=int(options.get("max_tokens", ANSWER_TOKENS)),
        context=int(options.get("context", TruthConfig.context)),
        prefill_steps=0.0 if is_read else PREFILL_STEPS,
        prefill_turn=int(options.get("prefill_tokens", 0)),
    )


def _with_lengths(
    item: WorkloadConfig,
    config: Config,
    truths: Mapping[str, TruthConfig],
    lengths: Mapping[str, TokenCounts],
    notes: Dict[str, str],
) -> WorkloadConfig:
    """A workload whose requests have lengths, where it asks a language model and does not say."""
    if ANSWER_HINT in item.hints:
        return item
    hints: Dict[str, Hint] = {}
    for name in item.apps:
        app = config.apps[name]
        for node in app.nodes:
            if node.model not in truths:
                continue
            truth, known = truths[node.model], lengths.get(name)
            prompt = PROMPT_TOKENS if known is None else known.prompt
            hints[hint_of(app, node.name, "tokens")] = _around(prompt, truth.context // 2)
            if known is None:
                hints[ANSWER_HINT] = Spread((truth.steps_max,), (1.0,))
                answers = f"each answer of {truth.steps_max}, as many as {node.model} may make"
            else:
                hints[ANSWER_HINT] = _around(known.answer, truth.steps_max)
                answers = f"answers of {known.answer:g}"
            notes[name] = f"{name} is simulated with prompts of {prompt:g} tokens on average and {answers}"
    return replace(item, hints={**hints, **item.hints})


def _around(mean: float, most: int) -> Lognormal:
    return Lognormal(math.log(mean) - SIGMA * SIGMA / 2, SIGMA, 1.0, float(most))
