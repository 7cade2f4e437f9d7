"""The ``whisper`` engine, held to the contract of engines, on a double of ctranslate2."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Dict, List, Optional

import ctranslate2_double as double
import numpy as np
import pytest

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Engine, Values
from edgeserve.testing.engine_conformance import EngineConformance

ENGINE = "edgeserve.engines.speech.whisper"

pytestmark = pytest.mark.nightly  # half a minute: the spectrum of many windows


class TestWhisper(EngineConformance):
    name = "ear"

    @pytest.fixture(autouse=True)
    def _double(self, monkeypatch: Any) -> None:
        monkeypatch.setitem(sys.modules, "ctranslate2", double.module())
        monkeypatch.setitem(sys.modules, ENGINE, sys)  # imported anew now, and again after the test
        del sys.modules[ENGINE]
        importlib.import_module(ENGINE)

    def make_echo(self, directory: str, rank: int, dtype: str) -> Optional[Engine]:
        return None

    def make(self, directory: str) -> Engine:
        file = double.write_files(directory)
        return make_engine(
            ModelConfig(name=self.name, engine="whisper", file=file, batch=self.sizes), [self.lane], directory
        )

    def items(self, count: int) -> List[Values]:
        return [{"audio": double.sound(*range(1 + index), 70, seconds=80 + index)} for index in range(count)]

    def wrong_items(self) -> Dict[str, Values]:
        return {
            "wrong name": {"sound": np.zeros(100, np.float32)},
            "wrong dtype": {"audio": np.zeros(100, np.int32)},
            "wrong shape": {"audio": np.zeros((2, 100), np.float32)},
            "empty": {"audio": np.zeros(0, np.float32)},
        }
