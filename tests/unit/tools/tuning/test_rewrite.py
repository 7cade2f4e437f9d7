"""Other policies in a file: lines change, comments and everything else stay."""

from __future__ import annotations

import pytest

from edgeserve.config.loading import parse_toml
from edgeserve.tools.tuning.rewrite import rewritten, snippet

FILE = """# my robot
[model.m]
engine = "synthetic"   # fast
[policy.fifo]          # promised
batch_max = 4

# the camera
[app.cam]
model = "m"
policy = "fifo"   # as promised
[app.cam.inputs.image]
dtype = "uint8"
[app."slow one"]
model = "m"
"""


def test_the_policy_of_an_app_is_replaced_and_comments_stay():
    text = rewritten(FILE, {"edf": {"batch_max": 2}}, {"cam": "edf", "slow one": "fifo"})
    assert parse_toml(text) == {
        "model": {"m": {"engine": "synthetic"}},
        "policy": {"fifo": {"batch_max": 4}, "edf": {"batch_max": 2}},
        "app": {
            "cam": {"model": "m", "policy": "edf", "inputs": {"image": {"dtype": "uint8"}}},
            "slow one": {"model": "m", "policy": "fifo"},
        },
    }
    for comment in ("# my robot", "# fast", "# promised", "# the camera\n[app.cam]", 'policy = "edf"   # as promised'):
        assert comment in text
    assert text.index("[policy.edf]") < text.index("# the camera")


def test_what_is_right_already_is_not_touched():
    assert rewritten(FILE, {}, {"cam": "fifo"}) == FILE


def test_values_of_every_type_are_written_as_toml():
    options = {"kind": "orloj", "learn": False, "delay_ms": 10.5, "cost_steps": [[50, 0.3]], "reading": 'urg"ent'}
    text = rewritten(FILE, {"x+y": options}, {"cam": "x+y"})
    assert parse_toml(text)["policy"]["x+y"] == options


@pytest.mark.parametrize(
    "text",
    [
        'model.m.engine = "synthetic"\napp.cam = { model = "m" }\n',
        '[model.m]\nengine = "s"\n[app]\ncam = { model = "m" }\n',
        '[app.cam]\nmodel = "m"\npolicy = """fifo"""\n',
    ],
)
def test_a_file_that_lines_cannot_follow_is_left_alone(text):
    assert rewritten(text, {"edf": {}}, {"cam": "edf"}) is None


def test_a_header_inside_a_text_is_no_header():
    text = '[app.cam]\nmodel = "m"\nnote = """\n[app.cam]\n[policy.x]\n"""\n'
    new = rewritten(text, {"edf": {}}, {"cam": "edf"})
    assert parse_toml(new)["app"]["cam"] == {**parse_toml(text)["app"]["cam"], "policy": "edf"}
    before = '[app.cam]\nnote = """\n[app.dog]\n"""\n[app.dog]\nmodel = "m"\n'
    assert rewritten(before, {}, {"dog": "edf"}) is None  # it would have changed the text


def test_files_without_policies_apps_or_a_last_line_end():
    assert parse_toml(rewritten('[app.cam]\nmodel = "m"', {"edf": {}}, {"cam": "edf"})) == {
        "policy": {"edf": {}},
        "app": {"cam": {"policy": "edf", "model": "m"}},
    }
    assert parse_toml(rewritten("# nothing", {"edf": {"batch_max": 2}}, {})) == {"policy": {"edf": {"batch_max": 2}}}


def test_the_snippet_says_the_same():
    assert parse_toml(snippet({"p": {"kind": "pard+", "batch_max": 2}}, {"slow one": "p"})) == {
        "policy": {"p": {"kind": "pard+", "batch_max": 2}},
        "app": {"slow one": {"policy": "p"}},
    }
