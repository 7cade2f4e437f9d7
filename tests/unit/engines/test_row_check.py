"""The check that a model keeps the items of a batch apart: kinds of models that do, and kinds that do not, by what the
check says of each. ``test_drawn_graphs.py`` compares the answers."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest

from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.axis_names import batch_elsewhere, length_of_another, name_of_another
from edgeserve.engines.base import Batch, Engine, Footprint, LaneInfo, Result, RowFacts
from edgeserve.engines.port import Port
from edgeserve.engines.row_check import Remembers, RowCheck, row_check_of
from edgeserve.errors import DeviceLost, EngineError, ExampleUnknown, WrongInput

pytest.importorskip("onnx", reason="the onnx package makes the test models; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="pip install -e '.[onnx]'")

import drawn_graphs
import onnx
import onnx_models
import sentence_models
import trt_worlds
from drawn_graphs import APART, MIXING, UNSTEADY, named, of_steps

SIZES = (1, 2, 4)
WHOLE = SIZES, ""
LANE = LaneInfo()


def sizes_of(engine: Engine, model: ModelConfig, lane: LaneInfo = LANE) -> Tuple[Tuple[int, ...], str]:
    """The remaining batch sizes of a model, and the reason."""
    engine.load()
    try:
        check = row_check_of(model, engine)
        assert check is not None, "there is nothing to look at"
        check.begin(engine.open(lane), engine.example())
        for size in check.order():
            check.look(size)
        return check.sizes(), check.why
    finally:
        engine.unload()


def of_file(folder: Any, file: Any, **settings: Any) -> Tuple[Tuple[int, ...], str]:
    """The result for an ONNX model, or for a file in ``folder``."""
    if not isinstance(file, str):
        onnx.save(file, os.path.join(str(folder), "m.onnx"))
        file = "m.onnx"
    model = ModelConfig("m", settings.pop("engine", "onnx"), file=file, **{"batch": SIZES, **settings})
    return sizes_of(make_engine(model, [LaneInfo()], str(folder)), model)


# --- kinds of models --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["vector", "series"])
@pytest.mark.parametrize("step", sorted(named((*MIXING, *UNSTEADY))))
def test_a_model_that_mixes_items_runs_one_at_a_time(step: str, kind: str, tmp_path: Any) -> None:
    sizes, why = of_file(tmp_path, of_steps(kind, named((*MIXING, *UNSTEADY))[step]))
    assert sizes == (1,)
    assert "'y'" in why and "batch of 2" in why


def test_larger_sizes_end_where_two_items_do_not_show_it(tmp_path: Any) -> None:
    """From three items on the mean of the batch is taken off."""
    add = onnx.helper.make_node
    nodes = [
        add("Shape", ["x"], ["shape"]),
        add("Gather", ["shape", "zero"], ["count"]),
        add("Greater", ["count", "two"], ["many"]),
        add("ReduceMean", ["x"], ["mean"], axes=[0]),
        add("Sub", ["x", "mean"], ["rest"]),
        add("Where", ["many", "rest", "x"], ["y"]),
    ]
    weights = [("zero", np.array(0, np.int64)), ("two", np.array(2, np.int64))]
    float_ = onnx.TensorProto.FLOAT
    file = onnx_models.save(str(tmp_path), "many", nodes, [("x", float_, ["B", 4])], [("y", float_, ["B", 4])], weights)
    sizes, why = of_file(tmp_path, file, batch=(1, 2, 4, 8))
    assert sizes == (1, 2) and "batch of 4" in why


def test_what_a_size_raises_ends_the_sizes(tmp_path: Any) -> None:
    file = onnx_models.linear(str(tmp_path))
    model = ModelConfig("m", "onnx", file, batch=SIZES)
    engine = make_engine(model, [LaneInfo()], str(tmp_path))
    run = engine.open

    def failing(lane: LaneInfo) -> Any:
        session = run(lane)
        launch = session.launch

        def launched(batch: Batch) -> Any:
            if batch.size > 2:
                raise RuntimeError("the library's own words")
            return launch(batch)

        session.launch = launched  # type: ignore[method-assign]
        return session

    engine.open = failing  # type: ignore[method-assign]
    sizes, why = sizes_of(engine, model)
    assert sizes == (1, 2) and why == "a batch of 4 fails: the library's own words"


def test_answers_by_chance_end_the_sizes_and_are_called_so(tmp_path: Any) -> None:
    sizes, why = of_file(tmp_path, of_steps("vector", drawn_graphs._random))
    assert sizes == (1,) and "gets other answers each time (output 'y')" in why
    assert row_check_of(ModelConfig("m", "onnx", batch=SIZES, batch_tolerance=1.0), Engine()) is None


def test_what_quantisation_by_the_range_of_the_batch_changes_can_be_accepted(tmp_path: Any) -> None:
    model = of_steps("vector", drawn_graphs._tanh, drawn_graphs._quantised)
    sizes, why = of_file(tmp_path, model)
    assert sizes == (1,) and "% of its value" in why
    assert of_file(tmp_path, model, batch_tolerance=0.3) == WHOLE
    garbled = of_steps("vector", drawn_graphs._garbled)
    assert of_file(tmp_path, garbled, batch_tolerance=0.3)[0] == (1,), "what is accepted is not everything"


def test_numbers_of_ten_bits_are_rounding(tmp_path: Any) -> None:
    half = onnx.TensorProto.FLOAT16
    add = onnx.helper.make_node
    weights = [("w", np.random.RandomState(1).randn(64, 64).astype(np.float16))]
    nodes = [add("MatMul", ["x", "w"], ["a"]), add("MatMul", ["a", "w"], ["y"])]
    file = onnx_models.save(str(tmp_path), "half", nodes, [("x", half, ["B", 64])], [("y", half, ["B", 64])], weights)
    assert of_file(tmp_path, file) == WHOLE


def test_a_model_that_always_says_the_same_shows_nothing_unless_an_example_is_given(tmp_path: Any) -> None:
    file = onnx_models.lookup(str(tmp_path))  # of words that no table has: the first row each time
    assert of_file(tmp_path, file, shapes={"ids": (3,)}) == WHOLE, "places 0 and 1 differ"
    sizes, why = of_file(tmp_path, of_steps("text", drawn_graphs._tanh))
    assert sizes == (1,) and "options.example" in why
    (tmp_path / "words.py").write_text(
        "import numpy as np\ndef item():\n    return {'x': np.array(['red', 'green'], object)}\n"
    )
    options = {"example": "words:item"}
    assert of_file(tmp_path, of_steps("text", drawn_graphs._tanh), options=options) == WHOLE
    assert of_file(tmp_path, of_steps("text", drawn_graphs._rolled), options=options)[0] == (1,)


def test_two_towers_answer_for_each_pair_and_run_one_at_a_time(tmp_path: Any) -> None:
    """``logits_per_image [images, texts]`` of a contrastive model: two inputs, each with a batch of its own."""
    add, float_ = onnx.helper.make_node, onnx.TensorProto.FLOAT
    nodes = [add("Transpose", ["texts"], ["turned"], perm=[1, 0]), add("MatMul", ["images", "turned"], ["logits"])]
    for first, second in (("image_batch", "text_batch"), (None, None)):
        inputs = [("images", float_, [first, 4]), ("texts", float_, [second, 4])]
        file = onnx_models.save(str(tmp_path), "towers", nodes, inputs, [("logits", float_, [first, second])])
        sizes, why = of_file(tmp_path, file)
        assert sizes == (1,) and "output 'logits' differs" in why


@pytest.mark.parametrize(
    ("steps", "crops", "masks", "sizes"),
    [
        ("pooled", True, False, SIZES),
        ("pooled", False, False, (1,)),  # an output as long as the longest item
        ("masked_mean", False, True, SIZES),
        ("brightest", False, False, (1,)),  # the mean over what fills up, too
    ],
)
def test_beside_a_longer_item_a_padded_one_gets_what_it_gets_alone(
    steps: str, crops: bool, masks: bool, sizes: Tuple[int, ...], tmp_path: Any
) -> None:
    add, float_ = onnx.helper.make_node, onnx.TensorProto.FLOAT
    if steps == "brightest":
        nodes = [add("ReduceMean", ["x"], ["y"], axes=[1], keepdims=0)]
        file = onnx_models.save(str(tmp_path), "mean", nodes, [("x", float_, ["B", "L"])], [("y", float_, ["B"])])
    else:
        file = getattr(onnx_models, steps)(str(tmp_path))
    options: Dict[str, Any] = {"crop_outputs": {"y": {"axis": 0, "like": "x", "of": 1}}} if crops else {}
    options.update({"mask": {"x": "x_mask"}} if masks else {})
    shapes = {"x": (1, 8) if steps == "pooled" else (8,)}
    left, why = of_file(tmp_path, file, shapes=shapes, pad={"x": 0.0}, options=options)
    assert left == sizes
    assert ("padded to the longest item" in why) == (sizes == (1,))


@pytest.mark.parametrize("mixed", [False, True])
def test_states_are_rows_too(mixed: bool, tmp_path: Any) -> None:
    file = onnx_models.recurrent(str(tmp_path))
    if mixed:  # the state alone, not what is answered in the same step
        model = onnx.load(os.path.join(str(tmp_path), file))
        next(node for node in model.graph.node if node.output[0] == "stateN").output[0] = "kept"
        model.graph.node.append(onnx.helper.make_node("ReduceMax", ["kept"], ["most"], axes=[1]))
        model.graph.node.append(onnx.helper.make_node("Sub", ["kept", "most"], ["stateN"]))
        onnx.save(model, os.path.join(str(tmp_path), file))
    settings: Any = {"state": {"state": "stateN"}, "options": {"state_axis": 1, "constants": {"rate": 16000}}}
    sizes, why = of_file(tmp_path, file, **settings)
    assert sizes == ((1,) if mixed else SIZES)
    assert ("state 'state'" in why) == mixed


def test_a_sentence_model_that_pools_over_what_fills_up_runs_one_text_at_a_time(tmp_path: Any) -> None:
    sentence_models.write(tmp_path, pools=True)
    assert of_file(tmp_path, "model.onnx", engine="sentence")[0] == (1,)
    sentence_models.write(tmp_path)
    assert of_file(tmp_path, "model.onnx", engine="sentence") == WHOLE


@pytest.mark.parametrize(("step", "sizes"), [("tanh", SIZES), ("rolled", (1,))])
def test_tensorrt_is_looked_at_too(step: str, sizes: Tuple[int, ...], tmp_path: Any, monkeypatch: Any) -> None:
    onnx.save(of_steps("vector", {**named(APART), **named(MIXING)}[step]), str(tmp_path / "m.onnx"))
    lane = trt_worlds.new_lane()
    with trt_worlds.world(monkeypatch, "10.3"):
        engine = trt_worlds.made(str(tmp_path), "m.onnx", batch=SIZES)
        assert sizes_of(engine, ModelConfig("m", "tensorrt", batch=SIZES), lane)[0] == sizes
        trt_worlds.close(lane)


def test_a_model_in_a_process_of_its_own_is_looked_at_too(tmp_path: Any) -> None:
    options = {"process": True, "process_timeout": "20s"}
    assert of_file(tmp_path, of_steps("vector", drawn_graphs._backwards), options=options)[0] == (1,)


# --- an engine of one's own -------------------------------------------------------------------------------------------


class Own(Engine):
    """An engine that shows what it is asked. ``answer`` computes a batch."""

    makes = {"x": np.zeros(3, np.float32)}
    facts = RowFacts()

    def __init__(self) -> None:
        self.batches: List[Batch] = []

    def load(self) -> Footprint:
        return Footprint(1)

    def unload(self) -> None:
        pass

    def example(self) -> Dict[str, Any]:
        return dict(self.makes)

    def rows(self) -> RowFacts:
        return self.facts

    def run(self, batch: Batch) -> List[Result]:
        self.batches.append(batch)
        return [Result(self.answer(item, batch)) for item in batch.items]

    def answer(self, item: Dict[str, Any], batch: Batch) -> Dict[str, Any]:
        return {"y": item["x"] * 2}


def of_own(engine: Engine, sizes: Tuple[int, ...] = SIZES, **settings: Any) -> Tuple[Tuple[int, ...], str]:
    return sizes_of(engine, ModelConfig("m", "own:Own", batch=sizes, **settings))


def test_an_engine_of_ones_own_is_looked_at_and_says_when_it_need_not_be() -> None:
    class Sums(Own):
        def answer(self, item: Dict[str, Any], batch: Batch) -> Dict[str, Any]:
            return {"y": sum(other["x"] for other in batch.items)}

    class Exempt(Sums):
        facts = RowFacts(checked=False)

    assert of_own(Own()) == WHOLE
    assert of_own(Sums())[0] == (1,)
    assert row_check_of(ModelConfig("m", "own:Own", batch=SIZES), Exempt()) is None


def test_the_look_is_bounded() -> None:
    """With any time of a run: a fixed number of them for each size, and each within the configured sizes."""
    for sizes in ((1, 2), SIZES, (1, 2, 4, 8, 16), (3, 9)):
        engine = Own()
        assert of_own(engine, sizes)[0] == sizes
        assert len(engine.batches) <= 20 + 5 * len(sizes)
        assert {batch.size for batch in engine.batches} <= {1, *sizes}


def test_a_model_that_mixes_two_items_is_not_run_in_larger_batches() -> None:
    class Sums(Own):
        def answer(self, item: Dict[str, Any], batch: Batch) -> Dict[str, Any]:
            return {"y": item["x"] * len(batch.items)}

    engine, model = Sums(), ModelConfig("m", "own:Own", batch=(1, 2, 64))
    check = row_check_of(model, engine)
    assert check is not None
    check.begin(engine.open(LaneInfo()), engine.example())
    assert check.look(check.order()[0]) and check.sizes() == (1,)
    assert max(batch.size for batch in engine.batches) == 2


@pytest.mark.parametrize("error", [DeviceLost("it is gone"), ExampleUnknown("no example")])
def test_trouble_that_is_none_of_the_rows_is_raised(error: EngineError) -> None:
    class Troubled(Own):
        def run(self, batch: Batch) -> List[Result]:
            raise error

    with pytest.raises(type(error)):
        of_own(Troubled())


def test_items_that_the_model_does_not_take_are_left_out() -> None:
    class Picky(Own):
        makes = {"x": np.array([1, 2, 3], np.int64), "note": "any text", "more": [1, {"a": 2}]}

        def answer(self, item: Dict[str, Any], batch: Batch) -> Dict[str, Any]:
            if sorted(item["x"].tolist()) != [1, 2, 3]:
                raise WrongInput("model 'm': x has to hold 1, 2 and 3")
            return {"y": item["x"], "text": item["note"].upper(), "parts": [{"z": item["more"]}]}

        def run(self, batch: Batch) -> List[Result]:
            self.batches.append(batch)
            results = []
            for item in batch.items:
                try:
                    results.append(Result(self.answer(item, batch)))
                except WrongInput as error:
                    results.append(Result({}, error=error))
            return results

    assert of_own(Picky()) == WHOLE


def test_a_model_without_a_batch_of_one_has_no_last_resort() -> None:
    class Pairs(Own):
        def run(self, batch: Batch) -> List[Result]:
            if batch.size == 1:
                raise EngineError("model 'm': runs pairs")
            return super().run(batch)

    class Mixes(Pairs):
        def answer(self, item: Dict[str, Any], batch: Batch) -> Dict[str, Any]:
            return {"y": batch.items[0]["x"]}

    assert of_own(Pairs(), (2, 4))[0] == (2, 4)
    with pytest.raises(EngineError, match="and the model runs no batch of one"):
        of_own(Mixes(), (2, 4))


def test_without_a_batch_of_one_among_its_sizes_a_model_that_mixes_gets_one() -> None:
    class Mixes(Own):
        def answer(self, item: Dict[str, Any], batch: Batch) -> Dict[str, Any]:
            return {"y": item["x"] + (batch.items[0]["x"] if batch.items[0] is not item else 0)}

    assert of_own(Mixes(), (2, 4))[0] == (1,)


def test_an_item_that_ends_its_process_is_the_last_that_is_drawn(tmp_path: Any) -> None:
    """And the process is there again for the warm-up."""
    (tmp_path / "dies.py").write_text(
        "import os\n"
        "import numpy as np\n"
        "from edgeserve.engine import Engine, Footprint, Result\n"
        "class Dies(Engine):\n"
        "    def __init__(self, model, lanes, directory): pass\n"
        "    def load(self): return Footprint(1)\n"
        "    def unload(self): pass\n"
        "    def example(self): return {'x': np.ones(2, np.float32)}\n"
        "    def run(self, batch):\n"
        "        for item in batch.items:\n"
        "            if item['x'].max() > 30: os._exit(3)\n"
        "        return [Result({'y': item['x']}) for item in batch.items]\n",
        encoding="utf-8",
    )
    model = ModelConfig("m", "dies:Dies", batch=SIZES, options={"process": True, "process_timeout": "20s"})
    engine = make_engine(model, [LANE], str(tmp_path))
    engine.load()
    try:
        check = row_check_of(model, engine)
        assert check is not None
        check.begin(engine.open(LANE), engine.example())
        assert "a drawn item ends its process" in check.look(2) and check.sizes() == (1,)
        assert engine.run(Batch([{"x": np.ones(2, np.float32)}], 4))[0].outputs["y"].tolist() == [1, 1]
    finally:
        engine.unload()


def test_a_give_up_ends_all_sizes() -> None:
    check = RowCheck(SIZES, RowFacts())
    check.give_up("nothing is known of its inputs")
    for size in check.order():
        assert check.look(size) == "nothing is known of its inputs"
    assert check.sizes() == (1,)


# --- what the names of axes tell ------------------------------------------------------------------------------------


def ports(*axes: Any) -> List[Port]:
    """Ports whose axes have these names, lengths, or neither (``None``)."""
    found = []
    for number, dims in enumerate(axes):
        names = tuple(dim if isinstance(dim, str) else "" for dim in dims)
        lengths = tuple(dim if isinstance(dim, int) else None for dim in dims)
        found.append(Port(f"p{number}", np.dtype(np.float32), lengths, names if any(names) else ()))
    return found


def told(inputs: List[Port], outputs: List[Port]) -> str:
    return batch_elsewhere(inputs) or length_of_another(inputs, outputs) or name_of_another(inputs, outputs)


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ([("batch", 3, "H", "W")], [("num_dets", 7)]),
        ([(1, 3, 8, 8)], [("num_dets", 7)]),
        ([(1, 3, 8, 8)], [(100, 4), (1, 5)]),
        ([("unk__1", 4)], [("detections", 4)]),
        ([("s0", 4)], [("u0", 4)]),
        ([("T", "batch", 4)], [("T", "batch", 4)]),
        ([("batch", 3), ("num_points", 2)], [("batch", 2)]),
        ([(1, 4, 16, 16), ("num_rois", 4)], [("num_rois", 4)]),
        ([("num_nodes", 6), (2, "num_edges")], [("num_nodes", 3)]),
        ([("height", "width", 3)], [("height", "width")]),
    ],
    ids=str,
)
def test_names_and_lengths_that_tell_of_no_row_for_each_item(inputs: Any, outputs: Any) -> None:
    assert told(ports(*inputs), ports(*outputs))


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ([("batch", 3, "H", "W")], [("batch", "anchors", 4)]),
        ([("batch", 3)], [("batch_size", 4), ("N", 4), (None, 2), ()]),
        ([("batch", 3)], [("Addoutput_dim_0", 4), ("unk__8", 1), ("s1", 2)]),
        ([("p2o.DynamicDimension.0", 3)], [("p2o.DynamicDimension.3", 1)]),
        ([(None, 3)], [("answers", 4)]),
        ([(1, 3)], [(1, 4), (None, 4), ()]),
        ([("image_batch", 3), ("text_batch", 5)], [("image_batch", "text_batch")]),
        ([("sequence", 4)], [("sequence", 2)]),
        ([(4, 6)], [(4, 2)]),
        ([(1, 6), ("batch", 2)], [("batch", 2)]),
        ([(1, 6), (None, 2)], [(None, 2)]),
    ],
    ids=str,
)
def test_names_that_tell_nothing(inputs: Any, outputs: Any) -> None:
    assert told(ports(*inputs), ports(*outputs)) == ""


# --- what a model keeps, and values that are no numbers ---------------------------------------------------------------


class Keeps(Own):
    """Adds what the items before it were."""

    by_chance: Any = False
    total = 0.0

    def rows(self) -> RowFacts:
        return RowFacts(by_chance=self.by_chance)

    def answer(self, item: Dict[str, Any], batch: Batch) -> Dict[str, Any]:
        self.total += float(np.sum(item["x"])) + 1.0
        return {"y": item["x"] + self.total}


@pytest.mark.parametrize("sizes", [(1,), SIZES])
def test_a_model_that_remembers_items_is_refused(sizes: Tuple[int, ...]) -> None:
    engine = Keeps()
    check = row_check_of(ModelConfig("m", "own:Own", batch=sizes), engine)
    assert check is not None
    check.begin(engine.open(LANE), engine.example())
    with pytest.raises(Remembers, match=r"keeps something.*each client.*state.*batch_tolerance = 1"):
        check.stands_still()
    assert row_check_of(ModelConfig("m", "own:Own", batch=sizes, batch_tolerance=1.0), engine) is None


@pytest.mark.parametrize("by_chance", [True, None])
def test_a_model_that_may_draw_by_chance_is_not_said_to_remember(by_chance: Any) -> None:
    engine = Keeps()
    engine.by_chance = by_chance
    check = row_check_of(ModelConfig("m", "own:Own", batch=SIZES), engine)
    assert check is not None
    check.begin(engine.open(LANE), engine.example())
    check.stands_still()


def test_batch_norm_in_training_mode_remembers(tmp_path: Any) -> None:
    """ONNX Runtime adds each batch to the mean that the file brought, and answers by that."""
    graph = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[N,3,4,4] x) => (float[N,3,4,4] y)
        <float[3] scale = {1.0, 1.0, 1.0}, float[3] zero = {0.0, 0.0, 0.0}, float[3] mean = {0.0, 0.0, 0.0},
         float[3] var = {1.0, 1.0, 1.0}>
        { y, new_mean, new_var = BatchNormalization<training_mode=1>(x, scale, zero, mean, var) }""")
    onnx.save(graph, str(tmp_path / "m.onnx"))
    model = ModelConfig("m", "onnx", "m.onnx", batch=(1,))
    engine = make_engine(model, [LANE], str(tmp_path))
    engine.load()
    check = row_check_of(model, engine)
    assert check is not None
    check.begin(engine.open(LANE), engine.example())
    with pytest.raises(Remembers):
        check.stands_still()
    engine.unload()


@pytest.mark.parametrize(
    "text",
    [
        """g (int64[N,6] x) => (int64[N,L] y) <int64 zero = {0}, int64[1] one = {1}, int64[1] first = {0}>
        { ends = Equal(x, zero) ones = Cast<to=1>(ends) at = ArgMax<axis=1, keepdims=0>(ones)
          last = ReduceMax<keepdims=0>(at) flat = Reshape(last, one) to = Add(flat, one)
          y = Slice(x, first, to, one) }""",
        """g (float[N,2000] x) => (int64[N,2000] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] most = {1999}, int64[1] big = {2000}>
        { s = Sign(x) i = Cast<to=7>(s) head = Slice(i, zero, most, one) m = ReduceMax<keepdims=1>(x)
          own = Slice(i, most, big, one) none = Sub(own, own) last = Cast<to=7>(m) tail = Add(none, last)
          y = Concat<axis=1>(head, tail) }""",
        """g (int64[N,4] x) => (float[N,4] y) <int64 mask = {103}>
        { is = Equal(x, mask) f = Cast<to=1>(is) any = ReduceMax<keepdims=0>(f)
          xf = Cast<to=1>(x) y = Add(xf, any) }""",
        """g (int64[N,4] x) => (float[N,4] y) <int64[1] huge = {9223372036854775807}, int64 least = {-3}>
        { end = Constant<value_int = 50256>() is = Equal(x, end) f = Cast<to=1>(is) any = ReduceMax<keepdims=0>(f)
          xf = Cast<to=1>(x) y = Add(xf, any) }""",
        """g (int32[N,4] x) => (float[N,4] y) <int32 mask = {103}, int32[5] rows = {0, 1, 2, 3, 4}, int64 big = {90000},
        float[104,2] table = {"""
        + ", ".join(["0.5"] * 208)
        + """}>
        { is = Equal(x, mask) f = Cast<to=1>(is) any = ReduceMax<keepdims=0>(f) t = Gather(table, x)
          m = ReduceMean<axes = [2], keepdims=0>(t) xf = Cast<to=1>(x) s = Add(xf, any) y = Add(s, m) }""",
    ],
    ids=[
        *("cut behind the longest text", "one number of 2000"),
        *("a mask anywhere", "an end of texts anywhere", "a mask anywhere, beside a number beyond the table"),
    ],
)
def test_small_signs_of_others_are_seen(text: str, tmp_path: Any) -> None:
    graph = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>' + text)
    assert of_file(tmp_path, graph)[0] == (1,)
