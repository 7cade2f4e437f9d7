"""A language model on two groups of CPU threads: long answers go to the side lane where they end there earlier."""

from __future__ import annotations

import lm_models

from edgeserve import Runtime

CONFIG = """
[device.host]
kind = "cpu"

[lane.main]
device = "host"

[lane.side]
device = "host"
nice = 1

[policy.chat]
POLICY
side_lanes = ["side"]

[app.write]
model = "tiny"
policy = "chat"
slo = "600s"
on_late = "answer"

[app.write.inputs]
prompt = { dtype = "text" }
max_tokens = { dtype = "any" }
ignore_eos = { dtype = "any" }

[model.tiny]
engine = "lm"
file = "tiny.onnx"
lanes = ["main", "side"]
batch = [1]
slots = 1
options = { context = 256 }
"""
SHORT, LONG = 4, 120


PUBLISHED = 'kind = "rtlm"\ntau = 30\noffload = "{}"'


def runtime_of(tmp_path, policy):
    lm_models.tiny(str(tmp_path))
    path = tmp_path / "edge.toml"
    path.write_text(CONFIG.replace("POLICY", policy))
    return Runtime(str(path))


def ask(runtime, number, steps):
    return runtime.submit(
        "write", {"prompt": f"prompt {number}", "max_tokens": steps, "ignore_eos": True}, hints={"steps": steps}
    )


def lanes_of(runtime, answer):
    """The lanes on which an answer was made."""
    words = [line.split() for line in runtime.story(answer.id) if " launched " in line]
    return {line[line.index("on") + 1] for line in words}


def test_a_static_threshold_sends_every_long_answer_to_the_side_lane_and_no_other(tmp_path):
    with runtime_of(tmp_path, PUBLISHED.format("static")) as runtime:
        for number, steps in enumerate((SHORT, LONG, SHORT, LONG)):
            answer = ask(runtime, number, steps).result(120)
            assert len(answer["tokens"]) == steps
            assert lanes_of(runtime, answer) == {"side" if steps == LONG else "main"}


def test_long_answers_go_to_the_side_lane_where_they_would_wait_longer_for_the_main_one(tmp_path):
    with runtime_of(tmp_path, PUBLISHED.format("conditional")) as runtime:
        alone = ask(runtime, 0, LONG).result(120)
        many = [ask(runtime, 0, LONG) for _ in range(24)]
        short = [ask(runtime, number, SHORT) for number in range(4)]
        answers = [future.result(120) for future in many]
        assert all(answer["tokens"].tolist() == alone["tokens"].tolist() for answer in answers)  # on either lane
        used = [lanes_of(runtime, answer) for answer in answers]
        assert {"side"} in used and {"main"} in used
        assert all(lanes_of(runtime, future.result(120)) == {"main"} for future in short)
        assert runtime.stats()["policies"]["chat"]["sent to side lanes"] == used.count({"side"})


def test_the_side_lane_makes_no_long_answer_where_nothing_goes_off(tmp_path):
    with runtime_of(tmp_path, PUBLISHED.format("none")) as runtime:
        answers = [future.result(120) for future in [ask(runtime, number, LONG) for number in range(4)]]
        assert all(lanes_of(runtime, answer) == {"main"} for answer in answers)
