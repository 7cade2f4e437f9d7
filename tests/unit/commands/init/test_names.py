"""Names in a model's file are anybody's: the configuration that is written means what was found, and nothing else."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgeserve import cli
from edgeserve.commands.init.compute import CPU, LaneText
from edgeserve.commands.init.images import ImageProposal
from edgeserve.commands.init.roles import Roles
from edgeserve.commands.init.text import configuration_text, summary
from edgeserve.commands.init.trial import FoundModel, ModelTrial
from edgeserve.config.loading import load_config, parse_config
from edgeserve.config.toml_files import parse_toml
from edgeserve.engines.describe import FileDescription, describe
from edgeserve.engines.port import Port

ATTACK = 'y"\n[model.evil]\nengine = "python"\nfunction = "os:system"\n#\x1b[2J'
NAMES = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40),
    st.lists(st.sampled_from([ATTACK, '"', "'", "\\", "\n", "\r", "]", "}", "#", "="]), min_size=1).map("".join),
).map(lambda name: name[:120])
F32, TEXT = np.dtype(np.float32), np.dtype(object)


@given(st.lists(NAMES, min_size=9, max_size=9, unique=True), st.booleans())
def test_any_name_is_written_as_itself(names, is_image):
    x, text, state, constant, y, new_state, file, note, why = names
    description = FileDescription("onnx", facts={"outputs": [y]})
    roles = Roles(
        description,
        given=[Port(x, F32, (None, 3, None, None)), Port(text, TEXT, (None, None))],
        constants={constant: 0.667},
        state={state: new_state},
        notes=[note],
    )
    tried = ModelTrial(
        "onnx", CPU, {1: 10**6}, {x: (3, 8, 8), text: (1,), state: (4,)}, {}, ((y, "float32 [3]"),), why=why
    )
    image = ImageProposal(x, {"size": [8, 8], "from": [1080, 1920]}) if is_image else ImageProposal(why=why)
    found = [FoundModel("m", file, roles, tried, image)]
    written = configuration_text(found, [LaneText("cpu0", "cpu", 1, "a lane")], {}, 0)
    table = parse_toml(written)
    assert table.pop("lane") == {"cpu0": {"device": "cpu", "threads": 1}}
    assert table == {
        "model": {
            "m": {
                "engine": "onnx",
                "file": file,
                "batch": [1],
                "shapes": {x: [3, 8, 8], text: [1], state: [4]},
                "state": {state: new_state},
                "options": {"constants": {constant: 0.667}, "outputs": [y]},
            }
        },
        "app": {
            "m": {
                "model": "m",
                "slo": "50ms",
                "stream": "in_order",
                "inputs": {
                    x: {"dtype": "float32", "shape": [3, -1, -1]},
                    text: table["app"]["m"]["inputs"][text],
                },
            }
        },
    }
    parse_config(table)
    assert not [char for char in written + summary(found, file, {}, 0) if char < " " and char != "\n"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(NAMES, NAMES, NAMES, st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_a_files_own_names_are_served_under_these_names(tmp_path, capsys, given_name, answer, file_name, metadata):
    onnx = pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
    import onnx_models

    given_name = given_name if given_name != answer else f"{answer} too"
    node = onnx.helper.make_node("Identity", [given_name], [answer])
    forms = [("B", 4), (given_name, onnx_models.FLOAT), (answer, onnx_models.FLOAT)]
    path = str(
        tmp_path / onnx_models.save(str(tmp_path), "m", [node], [(*forms[1], forms[0])], [(*forms[2], forms[0])])
    )
    model = onnx.load(path)
    onnx.helper.set_model_props(model, {"imgsz": metadata, metadata or "x": metadata})
    stem = file_name.replace("/", "-").replace(chr(0), "-")[:40]
    own = str(tmp_path / f"{stem if stem.strip('.') else 'm'}.onnx")  # a name of dots alone has no ending
    onnx.save(model, own)
    out = str(tmp_path / "edge.toml")
    assert cli.main(["init", "--here", own, "--out", out, "--cpu", "--force"]) == 0
    said = "".join(capsys.readouterr())
    assert not [char for char in said if char < " " and char != "\n"]
    config = load_config(out)
    (name,) = config.models
    assert os.path.samefile(os.path.join(str(tmp_path), config.models[name].file), own)
    assert list(config.apps) == [name] and list(config.apps[name].inputs) == [given_name]
    assert [port.name for port in describe(own).outputs] == [answer]


@pytest.mark.parametrize("name", ["~home.onnx", "cache:x.onnx", 'a b\'s "$(id)".onnx', "-rf.onnx"])
def test_any_file_name_is_found_again(name, tmp_path, monkeypatch, capsys):
    import onnx_models

    monkeypatch.chdir(tmp_path)
    os.rename(onnx_models.linear("."), name)
    assert cli.main(["init", "--here", "--cpu", "--out", "an edge.toml", "--", name]) == 0
    assert "edgeserve serve 'an edge.toml'" in capsys.readouterr().out
    assert cli.main(["doctor", "--quick", "an edge.toml"]) in (0, 1)
    assert "there is no file" not in capsys.readouterr().out
    (model,) = load_config("an edge.toml").models.values()
    from edgeserve.config.model_files import model_path

    assert os.path.samefile(model_path(model, str(tmp_path)), name)


def test_a_file_name_that_is_no_text_is_refused(tmp_path, capsys):
    import onnx_models

    name = os.path.join(str(tmp_path), "m\udcff.onnx")
    os.rename(os.path.join(str(tmp_path), onnx_models.linear(str(tmp_path))), name)
    assert cli.main(["init", "--here", name, "--out", str(tmp_path / "edge.toml"), "--cpu"]) == 2
    assert "rename it" in capsys.readouterr().err and not (tmp_path / "edge.toml").exists()


@pytest.mark.parametrize("damage", [b"\xff\xfe", b"x" * 300])
def test_a_name_that_no_request_can_bring_is_refused(damage, tmp_path, capsys):
    import onnx
    import onnx_models

    name = "Q" * len(damage)
    node = onnx.helper.make_node("Identity", [name], ["y"])
    ports = [(name, onnx_models.FLOAT, ["B", 4])], [("y", onnx_models.FLOAT, ["B", 4])]
    path = tmp_path / onnx_models.save(str(tmp_path), "m", [node], *ports)
    path.write_bytes(path.read_bytes().replace(name.encode(), damage))
    assert cli.main(["init", "--here", str(path), "--out", str(tmp_path / "edge.toml"), "--cpu"]) == 2
    assert "name" in capsys.readouterr().err and not (tmp_path / "edge.toml").exists()
