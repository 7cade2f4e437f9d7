"""Predicted lengths of a language model's answers, where its app has no function for them (``predict/length.py``)."""

from __future__ import annotations

from typing import Any, List, Mapping, Optional

from edgeserve.config.files import resolve_path
from edgeserve.config.schema import DEFAULT_POLICY, AppConfig, Config, ModelConfig
from edgeserve.errors import ConfigError
from edgeserve.live.hints import number_of
from edgeserve.predict.serving.predictors import Predictor, Predictors, prompt_counter
from edgeserve.sched.core.build import policy_of

ORDERED_BY_LENGTH = ("rtlm", DEFAULT_POLICY)
"""The kinds of policies that predicted lengths are for."""


class AnswerLengths:
    """Predicts the hints ``steps`` and ``steps_sd`` of one app. ``most``: the most tokens that its model writes."""

    def __init__(self, app: AppConfig, most: int, directory: str) -> None:
        from edgeserve.predict.length import load_length_model, packaged  # the word lists take memory
        from edgeserve.predict.questions import question

        self.most = most
        self._file = resolve_path(app.answer_lengths, directory) if app.answer_lengths else ""
        self._model = load_length_model(self._file) if self._file else packaged()
        self._question = question

    @property
    def predictors(self) -> List[Predictor]:
        """One per hint."""
        spec = self._file or "the packaged model of lengths"
        return [Predictor("steps", spec, self.steps), Predictor("steps_sd", spec, self.steps_sd)]

    def steps(self, inputs: Mapping[str, Any]) -> float:
        """Tokens that the answer is expected to have; of a request without a text, those of the usual one."""
        return self._model.predict(self._question(inputs) or "").mean(self._most(inputs))

    def steps_sd(self, inputs: Mapping[str, Any]) -> float:
        """The deviation of the logarithm of that number."""
        return self._model.sigma

    def _most(self, inputs: Mapping[str, Any]) -> float:
        asked = number_of(inputs.get("max_tokens"))
        return self.most if asked is None else min(self.most, max(1.0, asked))


def answer_lengths(app: AppConfig, model: Optional[ModelConfig], config: Config) -> Optional[AnswerLengths]:
    """The length predictor of an app of one language ``model`` that has no function for its steps, under a policy that
    orders by them. Raises ``ConfigError`` where the file that the app names can have no effect."""
    kind = config.policies[policy_of(config, app)].kind
    if model is not None and "steps" not in app.functions and kind in ORDERED_BY_LENGTH:
        from edgeserve.engines.lm.lm_options import MAX_TOKENS

        return AnswerLengths(app, int(model.options.get("max_tokens", MAX_TOKENS)), config.directory)
    if app.answer_lengths:
        raise ConfigError(
            f"[app.{app.name}] predict.steps = {app.answer_lengths!r} has no effect: expected an app of one language "
            f"model, and a policy of kind {', '.join(ORDERED_BY_LENGTH)} (found {kind!r})"
        )
    return None


def hint_source(app: AppConfig, model: Optional[ModelConfig], config: Config) -> Optional[Predictors]:
    """The predictors of an app; ``model`` is the language model whose prompts it takes as they are. Raises
    :class:`ConfigError` or :class:`EngineError`."""
    lengths = answer_lengths(app, model, config)
    counters = [] if model is None else [prompt_counter(model, app, config)]
    if not (app.functions or counters or lengths):
        return None
    return Predictors(app, config.directory, counters, lengths)
