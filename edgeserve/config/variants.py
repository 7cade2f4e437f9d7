"""Variants of a model: other models that may answer in its place, each with a quality and a time of its own.

``[model.NAME.variants]`` names them with what their answers are worth; an app of that one model says the least quality
that is of use. Works on typed tables; knows no file, engine or scheduler.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Mapping

from edgeserve.config.schema import WRITING_ENGINES, AppConfig, Config, ModelConfig
from edgeserve.errors import ConfigError, nearest

VARIANTS_MAX = 9
"""Variants of a model, as many as an ensemble may have models besides one."""


def with_variants(app: AppConfig, models: Mapping[str, ModelConfig]) -> AppConfig:
    """The app with the models that may answer it, where its one model has variants: those of at least its
    ``least_quality``, the best first."""
    model = models.get(app.nodes[0].model) if len(app.nodes) == 1 else None
    if model is None or not model.variants or app.nodes[0].fan_out or app.nodes[0].route == "one":
        return app
    qualities = {model.name: 1.0, **model.variants}
    of_use = {name: quality for name, quality in qualities.items() if quality >= app.least_quality}
    return replace(app, variants=dict(sorted(of_use.items(), key=lambda row: -row[1])))


def check_variants(config: Config) -> None:
    """Variants must be models that can answer in place of theirs, and apps must be served by one that is of use."""
    for model in config.models.values():
        for name in model.variants:
            _check_variant(model, name, config)
        if len(model.variants) > VARIANTS_MAX:
            raise ConfigError(
                f"[model.{model.name}.variants] has {len(model.variants)} models: expected {VARIANTS_MAX} at most"
            )
    for app in config.apps.values():
        if app.least_quality:
            _check_least(app)


def _check_variant(model: ModelConfig, name: str, config: Config) -> None:
    where = f"[model.{model.name}.variants] {name} = {model.variants[name]:g}"
    if name not in config.models:
        raise ConfigError(f"{where}: there is no model {name!r}{nearest(name, config.models)}; give [model.{name}]")
    variant = config.models[name]
    if variant is model:
        raise ConfigError(f"{where}: a model is no variant of itself; its own quality is 1")
    if variant.variants:
        raise ConfigError(
            f"{where}: {name!r} has variants of its own; name {', '.join(map(repr, variant.variants))} beside it, in "
            f"[model.{model.name}.variants]"
        )
    for each in (model, variant):
        if each.engine in WRITING_ENGINES:
            raise ConfigError(
                f"{where}: [model.{each.name}] engine = {each.engine!r} writes its answers step by step, and variants "
                "answer at once; leave it out of the variants, and give it an app of its own"
            )
        if each.keeps_state:
            raise ConfigError(
                f"{where}: model {each.name!r} keeps a state, which no other model could go on from; leave it out of "
                "the variants"
            )


def _check_least(app: AppConfig) -> None:
    if not app.variants:
        raise ConfigError(
            f"[app.{app.name}] least_quality = {app.least_quality:g} is of an app of one model that has variants; give "
            f"[model.{app.nodes[0].model}.variants], or leave least_quality out"
        )
