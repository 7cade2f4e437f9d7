"""The hook of an app's predictions, which ``live/plug_ins.py`` loads by name."""

from __future__ import annotations

from typing import Optional

from edgeserve.config.schema import AppConfig, Config, ModelConfig
from edgeserve.predict.serving.answer_lengths import answer_lengths
from edgeserve.predict.serving.predictors import Predictors, prompt_counter


def hint_source(app: AppConfig, model: Optional[ModelConfig], config: Config) -> Optional[Predictors]:
    """The predictors of an app; ``model`` is the language model whose prompts it takes as they are. Raises
    :class:`ConfigError` or :class:`EngineError`."""
    lengths = answer_lengths(app, model, config)
    counters = [] if model is None else [prompt_counter(model, app, config)]
    if not (app.functions or counters or lengths):
        return None
    return Predictors(app, config.directory, counters, lengths)
