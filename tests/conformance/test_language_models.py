"""The ``lm`` engine, held to the contract of engines: on ONNX Runtime, and on llama.cpp's double. The models have a
first token."""

from __future__ import annotations

import importlib
import json
import pathlib
import sys
from typing import Any, Dict, List, Optional

import llama_double
import pytest
from openai_server import local_server

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Engine, Values
from edgeserve.testing.engine_conformance import ALL_POISONS, EngineConformance


class LanguageModel(EngineConformance):
    """Greedy answers, whose tokens must be the same in any batch."""

    name = "chat"
    poisons = ALL_POISONS
    file = ""

    def make_echo(self, directory: str, rank: int, dtype: str) -> Optional[Engine]:
        return None

    def make(self, directory: str) -> Engine:
        return make_engine(
            ModelConfig(name=self.name, engine="lm", file=self.file, batch=self.sizes), [self.lane], directory
        )

    def items(self, count: int) -> List[Values]:
        talk = json.dumps([{"role": "user", "content": "b"}])
        given = (
            {"prompt": "A short one"},
            {"messages": talk},
            {"prompt": "The longest of these prompts goes on for a while"},
            {"prompt": "four"},
        )
        return [{**given[index], "max_tokens": 6 + 3 * index, "ignore_eos": True} for index in range(count)]

    def wrong_items(self) -> Dict[str, Values]:
        return {
            "wrong name": {"question": "x"},
            "wrong dtype": {"tokens": [0.5]},
            "wrong shape": {"tokens": [[1]]},
            "empty": {"messages": "[]"},
            "too long": {"tokens": [1] * 5000},
        }


class TestOnnx(LanguageModel):
    def make(self, directory: str) -> Engine:
        import lm_models

        self.file = lm_models.tiny(directory, first=[lm_models.END])
        return super().make(directory)


class TestLlamaCpp(LanguageModel):
    file = "model.gguf"

    @pytest.fixture(autouse=True)
    def _double(self, monkeypatch: Any) -> None:
        double = llama_double.module(vocab_get_add_bos=lambda vocabulary: True)
        monkeypatch.setitem(sys.modules, "llama_cpp", double)
        llama_double.forget(monkeypatch)
        importlib.import_module(llama_double.BACKEND)

    def make(self, directory: str) -> Engine:
        llama_double.write_file(pathlib.Path(directory, self.file))
        return super().make(directory)


class TestServer(LanguageModel):
    """Answers of a local server, over HTTP."""

    poisons = ()

    @pytest.fixture(autouse=True)
    def _server(self) -> Any:
        with local_server(slots=16) as self.server:
            yield

    def make(self, directory: str) -> Engine:
        options = {"backend": "openai", "url": self.server.url}
        model = ModelConfig(name=self.name, engine="lm", batch=self.sizes, options=options)
        return make_engine(model, [self.lane], directory)
