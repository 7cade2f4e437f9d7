"""Pinned threads, and engines in a process of their own: they die alone, come back within a bound, leave nothing."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import sys
import time

import numpy as np
import psutil
import pytest
from own_thread import in_a_thread

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo, run_whole
from edgeserve.errors import ConfigError, EngineError, ExampleUnknown
from edgeserve.offload import pin
from edgeserve.offload.channel import Channel
from edgeserve.offload.pin import allowed_cores, pin_thread
from edgeserve.offload.quarantine import PoisonInput

FUNCTIONS = """
import os, time
from edgeserve.engines.base import Result
class Exits:
    def __reduce__(self): return os._exit, (7,)
class Count:
    def __init__(self): self.calls, self.seen = 0, []
def counted(inputs, state):
    state = state or Count()
    state.calls += 1
    state.seen.append(inputs["x"])
    return {"calls": state.calls, "pid": os.getpid()}, state
def f(inputs):
    what = inputs.get("do", "")
    if str(what).startswith("die"): os.kill(os.getpid(), 9)
    if what == "leave": os._exit(3)
    if what == "raise": raise ValueError("on purpose")
    if what == "unsendable": return {"y": lambda: 1}
    if what == "exits": return {"y": Exits()}
    if what == "say": return Result({"y": 1}, hints={"read.work": inputs["x"][2], "read.steps": 3})
    if what == "hold": sum(range(10**11))
    return {"y": inputs["x"] * 2, "pid": os.getpid(), "cores": sorted(os.sched_getaffinity(0))}
"""
X = np.arange(3.0)


def made(folder, timeout):
    (folder / "offload_functions.py").write_text(FUNCTIONS)
    options = {"process": True, "process_timeout": timeout, "process_restarts_max": 2}
    model = ModelConfig("m", "python", function="offload_functions:f", options=options)
    return make_engine(model, [LaneInfo(cores=allowed_cores()[:1])], str(folder))


def started(folder):
    engine = made(folder, "60s")
    engine.load()
    yield engine
    engine.unload()


def until(call):
    """Repeat a call until a process has started within its time, which a busy machine may exceed."""
    while True:
        try:
            return call()
        except EngineError:
            time.sleep(0.01)


@pytest.fixture
def engine(tmp_path):
    yield from started(tmp_path)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """An engine for tests after which its process still runs."""
    yield from started(tmp_path_factory.mktemp("calm"))


def run(engine, do=""):
    return run_whole(engine.open(LaneInfo()), Batch([{"x": X, "do": do}], 1))[0][0].outputs


def test_it_runs_elsewhere_on_the_lanes_cores(calm):
    outputs = run(calm)
    np.testing.assert_array_equal(outputs["y"], X * 2)
    assert outputs["pid"] == calm.pid != os.getpid()
    assert outputs["cores"] == list(allowed_cores()[:1])


def test_what_a_function_says_of_a_request_comes_along(calm):
    (result,) = calm.run(Batch([{"x": X, "do": "say"}], 1))
    assert (result.outputs, result.hints) == ({"y": 1}, {"read.work": 2.0, "read.steps": 3})


def test_a_killed_child_is_a_typed_error_and_comes_back(engine):
    before = engine.pid
    with pytest.raises(EngineError, match=r"model 'm': its process ended during run\(\) \(killed by SIGKILL\)"):
        run(engine, "die")
    assert run(engine)["pid"] != before
    with pytest.raises(EngineError, match="exit status 3"):
        run(engine, "leave")
    child = psutil.Process(run(engine)["pid"])
    child.kill()  # between two calls
    child.wait(10)
    assert run(engine)["pid"] != child.pid, "no call was lost"


def test_a_process_that_would_come_back_with_another_file_does_not_until_a_load(tmp_path):
    (tmp_path / "offload_functions.py").write_text(FUNCTIONS)
    (tmp_path / "net.bin").write_bytes(b"old")
    options = {"process": True, "process_restarts_max": 9}
    model = ModelConfig("m", "python", function="offload_functions:f", file="net.bin", options=options)
    engine = make_engine(model, [LaneInfo()], str(tmp_path))
    engine.load()
    with pytest.raises(EngineError, match="killed by SIGKILL"):
        run(engine, "die")
    assert run(engine)["y"].tolist() == [0, 2, 4], "its file is as it was"
    (tmp_path / "net.bin").write_bytes(b"another")
    assert run(engine)["y"].tolist() == [0, 2, 4], "it has what it has read"
    with pytest.raises(EngineError, match="killed by SIGKILL"):
        run(engine, "die too")
    for _ in range(2):
        with pytest.raises(EngineError, match="its files are others than it was loaded from; reload it"):
            run(engine)
    engine.unload()
    engine.load()
    assert run(engine)["y"].tolist() == [0, 2, 4]
    engine.unload()


def test_an_input_that_ends_its_process_twice_is_refused_and_spares_the_others(engine):
    for _ in range(2):
        with pytest.raises(EngineError, match="killed by SIGKILL"):
            run(engine, "die")
    child = run(engine)["pid"]
    for _ in range(3):
        results = engine.run(Batch([{"x": X, "do": do} for do in ("", "die", "")], 4))
        assert [type(result.error) for result in results] == [type(None), PoisonInput, type(None)]
        assert results[2].outputs["pid"] == child, "it did not reach the process"
    with pytest.raises(PoisonInput, match="quarantined: model 'm' does not run this input again"):
        run(engine, "die")
    engine.unload()
    engine.load()
    with pytest.raises(EngineError, match="killed by SIGKILL"):  # a reload lifts it: the function may be mended
        run(engine, "die")


def test_those_beside_it_in_the_batch_are_found_innocent(engine):
    items = [{"x": X + place, "do": do} for place, do in enumerate(("", "die", ""))]
    with pytest.raises(EngineError, match="killed by SIGKILL"):
        engine.run(Batch(items, 4))
    results = engine.run(Batch(items, 4))  # each alone now: the process ends with one of them
    assert [result.error is None for result in results] == [True, False, True]
    results = engine.run(Batch(items, 4))
    assert [type(result.error) for result in results] == [type(None), PoisonInput, type(None)]


def test_the_child_imports_nothing_from_the_working_directory(tmp_path, monkeypatch):
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for folder in (home, elsewhere):
        folder.mkdir()
    (home / "safe_functions.py").write_text("def f(item):\n    import colorsys\n    return {'from': colorsys.__file__}")
    for name in ("colorsys", "safe_functions", "msgpack", "numpy", "sitecustomize"):
        (elsewhere / f"{name}.py").write_text("raise SystemExit('a stranger's module')")
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(sys, "path", ["", str(elsewhere), *sys.path])
    engine = make_engine(
        ModelConfig("m", "python", function="safe_functions:f", options={"process": True}), [LaneInfo()], str(home)
    )
    engine.load()
    try:
        assert str(elsewhere) not in run(engine)["from"]
    finally:
        engine.unload()


def test_a_function_that_does_not_answer_is_killed(tmp_path):
    engine = made(tmp_path, "1s")
    until(engine.load)
    until(lambda: run(engine))
    child = engine.pid
    with pytest.raises(EngineError, match=r"did not answer within 1s and its process was killed"):
        run(engine, "hold")
    assert not psutil.pid_exists(child)
    until(lambda: run(engine))
    engine.unload()


def test_an_unknown_example_stays_that_kind_of_error(calm):
    with pytest.raises(ExampleUnknown, match=r"give \[model.m\] options.example"):
        calm.example()


def test_a_state_of_any_class_goes_on_in_the_next_process(tmp_path):
    (tmp_path / "offload_functions.py").write_text(FUNCTIONS)
    options = {"process": True, "stateful": True}
    engine = make_engine(
        ModelConfig("m", "python", function="offload_functions:counted", options=options), [LaneInfo()], str(tmp_path)
    )
    engine.load()
    state, pids = None, set()
    for calls in (1, 2, 3):
        (result,) = engine.run(Batch([{"x": X}], 1, [state]))
        state = result.state
        assert result.outputs["calls"] == calls
        pids.add(result.outputs["pid"])
        if calls == 2:
            child = psutil.Process(engine.pid)
            child.kill()
            child.wait(10)
    assert len(pids) == 2
    engine.unload()


def test_what_a_child_sends_runs_nothing_here():
    class Exits:
        def __reduce__(self):
            return os._exit, (7,)

    ours, theirs = socket.socketpair()
    for sent, says in ((pickle.dumps((True, Exits())), "os._exit|posix._exit"), (b"no pickle", "no value|invalid")):
        theirs.sendall(struct.pack("!IQ", 1, len(sent)) + sent)
        with pytest.raises(pickle.UnpicklingError, match=says):
            Channel(ours).receive(5)
    ours.close()
    theirs.close()


def test_items_that_fail_or_cannot_travel_fail_alone_and_keep_the_process(calm):
    child = calm.pid
    doings = ["", "raise", lambda: 1, "unsendable", "exits", ""]
    results = calm.run(Batch([{"x": X + place, "do": do} for place, do in enumerate(doings)], 8))
    for place in (0, 5):
        np.testing.assert_array_equal(results[place].outputs["y"], (X + place) * 2)
        assert results[place].error is None
    for place, said in (
        (1, "model 'm': offload_functions:f raised ValueError on item 1: on purpose"),
        (2, "model 'm': its items cannot be sent to its process"),
        (3, "model 'm': what it returned cannot be sent between processes"),
        (4, "Exits); return arrays, numbers"),
    ):
        assert isinstance(results[place].error, EngineError)
        assert said in str(results[place].error)
    none = calm.run(Batch([{"x": X, "do": lambda: 1}] * 2, 2))
    assert [isinstance(result.error, EngineError) for result in none] == [True, True]
    assert run(calm)["pid"] == child


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(12)[::3],
        np.zeros((0, 3)),
        np.array(5),
        np.array(["a", None], object),
    ],
)
@pytest.mark.parametrize("from_child", [False, True])
def test_arrays_of_any_layout_survive_the_channel(array, from_child):
    ours, theirs = (Channel(end, is_child) for end, is_child in zip(socket.socketpair(), (from_child, not from_child)))
    ours.send({"array": array, "again": [array, "text", {1.5, array.dtype, np.float32(2)}]})
    got = theirs.receive(5)
    assert got["again"][2] == {1.5, array.dtype, np.float32(2)}
    for other in (got["array"], got["again"][0]):
        np.testing.assert_array_equal(other, array)
        assert other.dtype == array.dtype
        assert other.flags.writeable
    ours.close()
    with pytest.raises(EOFError, match="closed"):
        theirs.receive(5)
    theirs.close()


def test_a_silent_other_end_is_a_timeout():
    ours, theirs = (Channel(end) for end in socket.socketpair())
    with pytest.raises(socket.timeout):
        ours.receive(0.01)
    with pytest.raises(socket.timeout):
        ours.send(np.zeros(10**7), 0.01)  # more than the buffers hold, without a reader
    ours.close()
    theirs.close()


def test_wrong_configuration_is_refused_here_and_not_in_the_child(tmp_path):
    for options, message in (
        ({"process": "yes"}, "options.process = 'yes': expected true or false"),
        ({"process": True, "process_timeout": 3}, "process_timeout = 3: expected a duration"),
        ({"process": True, "bached": True}, "has no key 'bached'; did you mean 'batched'"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_engine(ModelConfig("m", "python", function="a:f", options=options), [LaneInfo()], str(tmp_path))


def test_a_function_that_cannot_be_imported_fails_the_load(tmp_path):
    engine = make_engine(
        ModelConfig("m", "python", function="nowhere:f", options={"process": True}), [LaneInfo()], str(tmp_path)
    )
    with pytest.raises(EngineError, match="module 'nowhere' cannot be imported"):
        engine.load()
    assert engine.pid is None


# --- pinning ---


def test_only_the_calling_thread_is_pinned():
    before = allowed_cores()
    pinned = in_a_thread(lambda: (pin_thread(before[:1]), allowed_cores()))
    assert pinned == ((True, before[:1], ""), before[:1])
    assert allowed_cores() == before


def test_an_impossible_wish_is_answered_and_changes_nothing():
    before = allowed_cores()
    answer = in_a_thread(lambda: pin_thread([4096]))
    assert not answer.done
    assert "core 4096 does not exist" in answer.why
    assert answer.cores == before
    assert "no cores are named" in pin_thread([]).why
    assert allowed_cores() == before


def test_a_cgroups_refusal_is_told(monkeypatch):
    def refuse(pid, cores):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(pin.os, "sched_setaffinity", refuse, raising=False)
    answer = pin_thread([0])
    assert not answer.done
    assert "Invalid argument" in answer.why
