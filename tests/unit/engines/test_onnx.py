"""The ONNX engine: what it refuses and with which words, lengths, states, providers."""

from __future__ import annotations

import os

import numpy as np
import pytest

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import Batch, LaneInfo, run_batch, run_whole
from edgeserve.errors import ConfigError, EngineError, WrongInput

pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
onnxruntime = pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")

import onnx_models  # noqa: E402 needs onnx

X = np.ones(4, np.float32)


def built(tmp_path, file, lane=None, **settings):
    return make_engine(ModelConfig(name="m", engine="onnx", file=file, **settings), [lane or LaneInfo()], str(tmp_path))


def loaded(tmp_path, file, **settings):
    engine = built(tmp_path, file, **settings)
    engine.load()
    return engine


def test_fixed_batch_refuses_larger_sizes_at_load(tmp_path):
    file = onnx_models.linear(str(tmp_path), batch=1)
    with pytest.raises(EngineError, match=r"batch = \[1, 2\], but the batch axis of input 'x' is fixed at 1"):
        loaded(tmp_path, file, batch=(1, 2))
    engine = loaded(tmp_path, file)
    with pytest.raises(EngineError, match="batch of 2, but the model's batch axis is fixed at 1"):
        engine.run(Batch([{"x": X}, {"x": X}], 2))


def test_inputs_whose_lengths_disagree_are_named(tmp_path):
    engine = loaded(tmp_path, onnx_models.masked_mean(str(tmp_path)), batch=(1, 2))
    item = {"x": np.ones(5, np.float32), "x_mask": np.ones(7, np.float32)}
    for items in ([item], [item, item]):
        with pytest.raises(WrongInput, match="'x' and 'x_mask' have lengths 5 and 7 on the axis 'L' that they share"):
            run_whole(engine.open(LaneInfo()), Batch(items, len(items)))


def test_hints_are_read_from_the_outputs(tmp_path):
    engine = loaded(
        tmp_path, onnx_models.linear(str(tmp_path)), options={"hints": {"a.label": "y:argmax", "a.margin": "y:margin"}}
    )
    (result,) = engine.run(Batch([{"x": X}], 1))
    ordered = np.sort(result.outputs["y"])
    assert result.hints == {
        "a.label": float(result.outputs["y"].argmax()),
        "a.margin": pytest.approx(float(ordered[-1] - ordered[-2])),
    }
    engine = loaded(tmp_path, onnx_models.linear(str(tmp_path)), options={"hints": {"h": "y"}})
    with pytest.raises(EngineError, match="hints.h = 'y', whose shape is .* expected a single number"):
        engine.run(Batch([{"x": X}], 1))


def test_more_items_than_the_size_are_refused(tmp_path):
    engine = loaded(tmp_path, onnx_models.linear(str(tmp_path)))
    for items, size in (([{"x": X}] * 2, 1), ([], 1)):
        with pytest.raises(EngineError, match="at least one and no more than its size"):
            engine.run(Batch(items, size))


def test_what_the_model_gets_is_padded_to_the_size(tmp_path):
    for pad_batch, expected in ((True, 4), (False, 3)):
        engine = loaded(tmp_path, onnx_models.linear(str(tmp_path)), batch=(4,), options={"pad_batch": pad_batch})
        packed = engine._ports.pack(Batch([{"x": X}] * 3, 4))
        assert (packed.feeds["x"].shape, packed.rows) == ((expected, 4), 3)


def test_lengths_are_cut_back(tmp_path):
    """The output is half as long as the input: each item gets its own half and not the batch's."""
    engine = loaded(
        tmp_path,
        onnx_models.pooled(str(tmp_path)),
        batch=(1, 4),
        pad={"x": 0.0},
        options={"pad_multiple": {"x": [1, 8]}, "crop_outputs": {"y": {"axis": 0, "like": "x", "of": 1}}},
    )
    lengths = (4, 9, 16)
    items = [{"x": np.arange(length, dtype=np.float32)[None]} for length in lengths]
    results = engine.run(Batch(items, 4))
    assert [len(result.outputs["y"]) for result in results] == [2, 5, 8]
    np.testing.assert_allclose(results[0].outputs["y"], [0.5, 2.5])
    np.testing.assert_allclose(results[2].outputs["y"], np.arange(0.5, 16, 2))


def test_state_is_per_item_and_counted(tmp_path):
    engine = loaded(
        tmp_path,
        onnx_models.recurrent(str(tmp_path)),
        batch=(1, 2),
        state={"state": "stateN"},
        options={"state_axis": 1, "constants": {"rate": 10}},
    )
    first = engine.run(Batch([{"x": X}, {"x": X * 2}], 2))
    assert list(first[0].outputs) == ["out"]  # the state is no output
    assert first[0].state["state"].shape == (2, 4)
    assert first[0].state_bytes == 2 * 4 * 4
    assert first[0].state["state"].base is None  # it does not keep the batch's array alive
    second = engine.run(Batch([{"x": X}, {"x": X}], 2, [first[1].state, None]))
    np.testing.assert_allclose(second[0].outputs["out"], X + 10 * 2 * X)
    np.testing.assert_allclose(second[1].outputs["out"], X)
    for wrong in ({"state": np.zeros(3, np.float32)}, {}, "text", {"state": 5}):
        mixed = engine.run(Batch([{"x": X}, {"x": X}], 2, [wrong, first[1].state]))
        with pytest.raises(EngineError, match="state of item 0 is not one that this model returned"):
            raise mixed[0].error
        np.testing.assert_allclose(mixed[1].outputs["out"], X + 10 * 2 * X)
        assert mixed[1].state["state"].shape == (2, 4)


def test_what_the_configuration_provides_must_not_be_sent(tmp_path):
    engine = loaded(
        tmp_path,
        onnx_models.recurrent(str(tmp_path)),
        state={"state": "stateN"},
        options={"state_axis": 1, "constants": {"rate": 10}},
    )
    with pytest.raises(EngineError, match="input 'rate' was sent, but .* options.constants provides it"):
        run_whole(engine.open(LaneInfo()), Batch([{"x": X, "rate": np.int64(8000)}], 1))


def test_safe_widening_of_ids(tmp_path):
    engine = loaded(tmp_path, onnx_models.lookup(str(tmp_path)), shapes={"ids": (3,)})
    result = engine.run(Batch([{"ids": np.array([0, 15, 1], np.int32)}], 1))[0]
    np.testing.assert_allclose(result.outputs["y"], [0, 1, 1 / 15], rtol=1e-6)
    assert engine.example()["ids"].dtype == np.int64


def test_a_failing_run_names_the_model_and_the_inputs_and_is_told_once(tmp_path, capfd):
    engine = loaded(tmp_path, onnx_models.lookup(str(tmp_path)))
    with pytest.raises(EngineError, match=r"model 'm' failed on ids int64\[1, 1\]"):
        engine.run(Batch([{"ids": np.array([99])}], 1))
    assert capfd.readouterr() == ("", ""), "the library's own log says it again"


def test_what_the_model_itself_refuses_fails_the_whole_batch_once(tmp_path, monkeypatch):
    engine = loaded(tmp_path, onnx_models.lookup(str(tmp_path)), batch=(1, 4))
    (threads, session), runs = next(iter(engine._sessions.items())), []

    class Counted:
        get_inputs = session.get_inputs

        def run(self, *arguments):
            runs.append(arguments)
            return session.run(*arguments)

    monkeypatch.setitem(engine._sessions, threads, Counted())
    with pytest.raises(EngineError, match=r"model 'm' failed on ids int64\[4, 1\]"):
        engine.run(Batch([{"ids": np.array([1])}, {"ids": np.array([99])}], 4))
    assert len(runs) == 1
    engine.run(Batch([{"ids": [[1], [2, 3]]}, {}], 4))
    assert len(runs) == 1  # nothing of it could run


def test_items_of_an_unusual_shape_fail_alone(tmp_path):
    """Each is right by itself, but without padding only one shape can share the batch: that of most."""
    engine = loaded(tmp_path, onnx_models.lookup(str(tmp_path)), batch=(1, 4))
    results = engine.run(Batch([{"ids": np.array(ids)} for ids in ([1, 2, 3], [4, 5], [6], [7, 8])], 4))
    assert [result.error is None for result in results] == [False, True, False, True]
    np.testing.assert_allclose(results[3].outputs["y"], np.array([7, 8]) / 15, rtol=1e-6)
    with pytest.raises(EngineError, match=r"different shapes in one batch, \(2,\) and \(3,\); allow padding"):
        raise results[0].error


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (onnx_models.recurrent, {}, "input 'rate' is a single number .* options.constants = {rate"),
        (onnx_models.recurrent, {"options": {"constants": {"rate": 1.5}}}, "constants.rate = 1.5; expected int64"),
        (
            onnx_models.recurrent,
            {"options": {"constants": {"rate": "fast"}}},
            "constants.rate = 'fast' cannot be int64",
        ),
        (onnx_models.recurrent, {"options": {"constants": {"rat": 1}}}, "names 'rat', which is no input .*mean 'rate'"),
        (
            onnx_models.recurrent,
            {"options": {"constants": {"rate": 1}}, "state": {"state": "state_n"}},
            "names 'state_n', which is no output",
        ),
        (onnx_models.linear, {"pad": {"z": 0.0}}, "pad names 'z', which is no input of the model"),
        (onnx_models.linear, {"shapes": {"y": (1,)}}, "shapes names 'y', which is no input"),
        (onnx_models.pooled, {"options": {"crop_outputs": {"y": {"axis": 0}}}}, "crop_outputs.y = .*; expected"),
        (
            onnx_models.pooled,
            {"options": {"crop_outputs": {"y": {"axis": 0, "like": "x", "of": 1}}}},
            "names 'x', which is no padded input",
        ),
        (onnx_models.linear, {"options": {"hints": {"h": "z"}}}, "hints.h names 'z', which is no output"),
        (onnx_models.linear, {"options": {"hints": {"h": "y:sum"}}}, "hints.h = 'y:sum'; expected an output's name"),
    ],
)
def test_configuration_against_the_model(tmp_path, make, settings, message):
    with pytest.raises(EngineError, match=message):
        loaded(tmp_path, make(str(tmp_path)), **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"options": {"provider": "cpu"}}, "has no key 'provider'; did you mean 'provider"),
        ({"options": {"threads": 0}}, r"options.threads = 0: expected a whole number from 1"),
        ({"options": {"spin": "no"}}, "options.spin = 'no': expected true or false"),
    ],
)
def test_options_are_checked_before_anything_is_loaded(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        built(tmp_path, "none.onnx", **settings)


def test_missing_files_say_where_they_were_looked_for(tmp_path, monkeypatch):
    with pytest.raises(EngineError, match=f"no file {tmp_path}/a.onnx; correct"):
        loaded(tmp_path, "a.onnx")
    monkeypatch.setenv("EDGESERVE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(EngineError, match=f"no file {tmp_path}/cache/zoo/a.onnx; fetch the assets"):
        loaded(tmp_path, "cache:zoo/a.onnx")
    with pytest.raises(EngineError, match="needs a file"):
        loaded(tmp_path, "")
    os.makedirs(tmp_path / "cache" / "zoo")
    onnx_models.linear(str(tmp_path / "cache" / "zoo"))
    assert loaded(tmp_path, "cache:zoo/linear.onnx").run(Batch([{"x": X}], 1))


def test_a_broken_file_is_a_typed_error(tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    with pytest.raises(EngineError, match="broken.onnx cannot be loaded"):
        loaded(tmp_path, "broken.onnx")


def test_an_absent_provider_fails_loudly(tmp_path):
    file = onnx_models.linear(str(tmp_path))
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA; the silent fall-back is tested with a fake below")
    for settings in ({"options": {"providers": ["cuda"]}}, {"lane": LaneInfo("cuda")}):
        with pytest.raises(EngineError, match="CUDAExecutionProvider is not in this build .*providers = ..cpu"):
            loaded(tmp_path, file, **settings)


class FallenBack:
    """A session as ONNX Runtime makes it when CUDA cannot start: no error, CPU only."""

    def __init__(self, path, settings, providers):
        self.providers = providers

    def get_providers(self):
        return ["CPUExecutionProvider"]


def test_a_silent_fall_back_is_refused(tmp_path, monkeypatch):
    file = onnx_models.linear(str(tmp_path))
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", FallenBack)
    with pytest.raises(EngineError, match="asked for CUDAExecutionProvider but .* fell back to CPUExecutionProvider"):
        loaded(tmp_path, file, options={"providers": "cuda"})


def session_of(engine):
    (session,) = engine._sessions.values()
    return session


def test_lanes_with_other_threads_have_sessions_of_their_own(tmp_path):
    lanes = [LaneInfo(name="a"), LaneInfo(name="b"), LaneInfo(threads=2, name="c")]
    engine = make_engine(ModelConfig("m", "onnx", file=onnx_models.linear(str(tmp_path))), lanes, str(tmp_path))
    footprint = engine.load()
    numbers = [session.get_session_options().intra_op_num_threads for session in engine._sessions.values()]
    assert numbers == [1, 2]
    alone = loaded(tmp_path, onnx_models.linear(str(tmp_path)))
    assert footprint.weights_bytes == 2 * alone.load().weights_bytes
    results = [run_whole(engine.open(lane), Batch([{"x": X}], 1))[0][0] for lane in lanes]
    assert all(np.array_equal(result.outputs["y"], results[0].outputs["y"]) for result in results)
    with pytest.raises(EngineError, match="model 'm' was not made for a lane with 7 threads"):
        run_whole(engine.open(LaneInfo(threads=7)), Batch([{"x": X}], 1))


def test_a_deep_lane_runs_on_a_worker_and_packs_on_its_own_thread(tmp_path):
    engine = loaded(tmp_path, onnx_models.linear(str(tmp_path)))
    lane = LaneInfo(depth=2, clock_ns=iter(range(100)).__next__, common={})
    session = engine.open(lane)
    first, second = session.launch(Batch([{"x": X}], 1)), session.launch(Batch([{"z": X}], 1))
    assert first.wait(10)
    assert np.array_equal(first.result()[0].outputs["y"], engine.run(Batch([{"x": X}], 1))[0].outputs["y"])
    assert second.wait(10)
    assert isinstance(second.result()[0].error, EngineError)
    assert [first.times(), second.times()] == [(0, 1), (2, 3)]
    lane.common["worker"].close()


def test_providers_and_threads_reach_the_session(tmp_path):
    engine = loaded(tmp_path, onnx_models.linear(str(tmp_path)), lane=LaneInfo(threads=2, cores=(0,)))
    assert engine.providers == ("CPUExecutionProvider",)
    settings = session_of(engine).get_session_options()
    assert settings.intra_op_num_threads == 2
    assert settings.inter_op_num_threads == 1
    assert settings.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert settings.get_session_config_entry("session.intra_op_thread_affinities") == "1"
    spinning = loaded(tmp_path, onnx_models.linear(str(tmp_path)), options={"spin": True, "threads": 1})
    assert session_of(spinning).get_session_options().get_session_config_entry("session.intra_op.allow_spinning") == "1"


def test_cuda_gets_the_lanes_device():
    from edgeserve.engines.onnx_providers import asked_providers
    from edgeserve.engines.options import Options

    model = ModelConfig("m", "onnx", options={"provider_options": {"cuda": {"gpu_mem_limit": 1000}}})
    options = Options(model, ("providers", "provider_options"))
    ((provider, settings),) = asked_providers(options, LaneInfo("cuda", 1))
    assert provider == "CUDAExecutionProvider"
    assert (settings["gpu_mem_limit"], settings["device_id"]) == ("1000", "1")


def test_the_example_needs_shapes_only_where_lengths_are_open(tmp_path):
    assert loaded(tmp_path, onnx_models.linear(str(tmp_path))).example()["x"].shape == (4,)
    file = onnx_models.pooled(str(tmp_path))
    with pytest.raises(EngineError, match=r"\[1, any\] per item; give its lengths .* shapes = {x = "):
        loaded(tmp_path, file).example()
    assert loaded(tmp_path, file, shapes={"x": (1, 6)}).example()["x"].shape == (1, 6)


@pytest.mark.parametrize("weights", ["m.onnx.data", "w.bin", "parts/a/w.bin"])
def test_footprint_counts_the_weights_that_the_graph_names(tmp_path, weights):
    file = onnx_models.scaled(str(tmp_path), [1.0] * 1000, weights)
    (tmp_path / "m.onnx_data").write_bytes(b"\0" * 1000)  # of another model
    assert loaded(tmp_path, file).load().weights_bytes == os.path.getsize(tmp_path / file) + 4000


@pytest.mark.parametrize("depth", [1, 2])
def test_a_value_that_the_model_does_not_take_fails_its_own_item(depth, tmp_path):
    """A place beyond a table shows in the run of the whole batch, whose other items belong to other clients."""
    import onnx

    graph = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (int64[N] x) => (float[N] y) <float[3] table = {5.0, 6.0, 7.0}> { y = Gather(table, x) }""")
    onnx.save(graph, str(tmp_path / "m.onnx"))
    lane = LaneInfo(name="gpu", depth=depth, clock_ns=iter(range(1000)).__next__, common={})
    engine = built(tmp_path, "m.onnx", lane, batch=(1, 4))
    engine.load()
    session = engine.open(lane)
    places = [2, 9, 0, -8]
    results, _ = run_batch(session, Batch([{"x": np.array(place)} for place in places], 4))
    assert [result.outputs.get("y") for result in results] == [7.0, None, 5.0, None]
    for result, place in zip(results, places):
        assert (result.error is None) == (0 <= place < 3)
        if result.error is not None:
            assert isinstance(result.error, WrongInput) and f"the index {place}," in str(result.error)
    for shared in lane.common.values():
        shared.close()


def test_a_size_that_the_model_does_not_take_fails_the_batch(tmp_path):
    """It is no item's fault: each runs alone."""
    import onnx

    graph = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[N,4] x) => (float[N,4] y) <int64[2] shape = {1, 4}> { y = Reshape(x, shape) }""")
    onnx.save(graph, str(tmp_path / "m.onnx"))
    engine = loaded(tmp_path, "m.onnx", batch=(1, 2))
    with pytest.raises(EngineError, match=r"fixed shape \[1,4\]"):
        run_batch(engine.open(LaneInfo()), Batch([{"x": X}, {"x": X}], 2))
