"""The network of a model, in whichever of its three forms."""

from __future__ import annotations

import warnings
from typing import Optional

import torch

from edgeserve.config.model_files import model_path
from edgeserve.config.schema import ModelConfig
from edgeserve.engines.options import Options
from edgeserve.engines.torch.exported import from_export
from edgeserve.engines.torch.programs import EXPORTED, Program, from_module, from_script
from edgeserve.errors import ConfigError, EngineError


def read_program(
    model: ModelConfig, options: Options, directory: str, device: torch.device, precision: Optional[torch.dtype]
) -> Program:
    """The network of ``model`` on ``device``. Raises :class:`EngineError` or :class:`ConfigError` with the mend."""
    if model.function:
        return from_module(model, options, directory, device, precision)
    path = model_path(model, directory)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript's files are read as long as torch can
            if path.endswith(EXPORTED):
                return from_export(model, options, path, device, precision)
            return from_script(model, options, path, device, precision)
    except (EngineError, ConfigError):
        raise
    except Exception as error:  # torch raises RuntimeError, zip and pickle errors and others
        expected = (
            "a program of torch.export.save"
            if path.endswith(EXPORTED)
            else "TorchScript (a module's weights alone also need function = 'module:Class')"
        )
        raise EngineError(f"model {model.name!r}: {path} cannot be loaded as {expected}: {error}") from error
