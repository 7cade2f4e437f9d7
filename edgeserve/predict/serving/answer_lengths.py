"""Predicted lengths of a language model's answers, where its app does not predict them itself (``predict/length.py``).

With ``learn_lengths`` the model goes on learning from the answers that the server gives: on the thread that predicts,
in memory, without keeping a text. Nothing is written, and what was learnt ends with the configuration.
"""

from __future__ import annotations

from typing import Any, List, Mapping, Optional

from edgeserve.config.files import resolve_path
from edgeserve.config.schema import DEFAULT_POLICY, AppConfig, Config, ModelConfig
from edgeserve.errors import ConfigError
from edgeserve.live.hints import number_of
from edgeserve.predict.serving.predictors import Predictor
from edgeserve.sched.core.build import policy_of

ORDERED_BY_LENGTH = ("rtlm", DEFAULT_POLICY)
"""The kinds of policies that predicted lengths are for."""


class AnswerLengths:
    """Predicts the hints ``steps`` and ``steps_sd`` of one app. ``most``: the most tokens that its model writes."""

    __slots__ = ("most", "_file", "_model", "_learning", "_question")

    def __init__(self, app: AppConfig, most: int, directory: str) -> None:
        from edgeserve.predict.length import LearningModel, load_length_model, packaged  # the word lists take memory
        from edgeserve.predict.questions import question

        self.most = most
        self._file = resolve_path(app.answer_lengths, directory) if app.answer_lengths else ""
        model = load_length_model(self._file) if self._file else packaged()
        self._learning: Optional[LearningModel] = LearningModel(model) if app.learn_lengths else None
        self._model = self._learning or model
        self._question = question

    @property
    def predictors(self) -> List[Predictor]:
        """One per hint."""
        spec = self._file or "the packaged model of lengths"
        return [Predictor("steps", spec, self.steps), Predictor("steps_sd", spec, self.steps_sd)]

    @property
    def learnt_from(self) -> Optional[int]:
        """The answers that were learnt from; ``None`` where the app does not learn."""
        return None if self._learning is None else self._learning.answers

    def steps(self, inputs: Mapping[str, Any]) -> float:
        """Tokens that the answer is expected to have; of a request without a text, those of the usual one."""
        return self._model.predict(self._question(inputs) or "").mean(self._most(inputs))

    def steps_sd(self, inputs: Mapping[str, Any]) -> float:
        """The deviation of the logarithm of that number."""
        return self._model.sigma

    def learn(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        """A request was answered. An answer without text or tokens says nothing."""
        tokens, text = number_of(outputs.get("completion_tokens")), self._question(inputs)
        if self._learning is not None and text and tokens is not None:
            self._learning.learn(text, int(tokens), self._most(inputs))

    def _most(self, inputs: Mapping[str, Any]) -> float:
        asked = number_of(inputs.get("max_tokens"))
        return self.most if asked is None else min(self.most, max(1.0, asked))


def answer_lengths(app: AppConfig, model: Optional[ModelConfig], config: Config) -> Optional[AnswerLengths]:
    """The length predictor of an app of one language ``model`` that does not predict its own steps, under a policy that
    orders by them. Raises ``ConfigError`` where ``answer_lengths`` or ``learn_lengths`` can have no effect."""
    kind = config.policies[policy_of(config, app)].kind
    if model is not None and "steps" not in app.predict and kind in ORDERED_BY_LENGTH:
        from edgeserve.engines.lm.lm_options import MAX_TOKENS

        if (
            app.learn_lengths
            and app.outputs
            and "completion_tokens" not in [output.rpartition(".")[2] for output in app.outputs]
        ):
            raise ConfigError(
                f"[app.{app.name}] learn_lengths = true learns from the output completion_tokens, which "
                "'outputs' leaves out; add it"
            )
        return AnswerLengths(app, int(model.options.get("max_tokens", MAX_TOKENS)), config.directory)
    for key in ("answer_lengths", "learn_lengths"):
        if getattr(app, key):
            raise ConfigError(
                f"[app.{app.name}] {key} = {getattr(app, key)!r} has no effect: expected an app of one language model, "
                f"a policy of kind {', '.join(ORDERED_BY_LENGTH)} (found {kind!r}), and no 'steps' in "
                f"[app.{app.name}.predict]"
            )
    return None
