"""The ``python`` engine: a host function as a model. Pre- and post-processing, glue, anything that needs no device.

``function = "module:name"`` is looked for beside the configuration file first. It is called per item with a dict of
named values and returns a dict, a list of dicts or :class:`Parts` (a fan-out), :class:`Route` (which successor) or a
full :class:`~edgeserve.engines.base.Result`, as one does that has outputs and hints: ``Result({"x": x}, hints={...})``.
An exception that it raises for an item fails that item only.

Options: ``batched = true`` calls it once with the list of items; an exception in the list that it returns fails the
item at that place, an exception that it raises fails the batch, since the faulty item is not known then. ``stateful =
true`` adds the state as a second argument and expects ``(returned, new state)``; the state of an item that fails stays
as it was. ``example = "module:name"`` gives one item for warm-up and profiling; ``process = true`` runs it in a process
of its own (``edgeserve.offload.process``).
"""

from __future__ import annotations

import ast
import copy
import inspect
import sys
import textwrap
import typing
from typing import Any, Callable, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Set

import numpy as np

from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import (
    Batch,
    BlockingSession,
    Engine,
    Footprint,
    LaneInfo,
    Result,
    RowFacts,
    Session,
    Values,
    is_interrupt,
    own_failure,
)
from edgeserve.engines.options import Options
from edgeserve.engines.own_values import lent, owned, private
from edgeserve.errors import ConfigError, EngineError, ExampleUnknown, told

KNOWN_OPTIONS = ("batched", "stateful", "example")

NOMINAL_BYTES = 1 << 20
"""The bytes that a function counts as when ``memory`` is not set: an imported module with its code and small tables."""

STATE_DEPTH_MAX = 8
"""The depth to which nested containers are followed when the bytes of a state are counted."""

Function = Callable[..., Any]


class Parts(NamedTuple):
    """The result of a fan-out function: named values per part, the values ``shared`` by all parts, and ``hints``:
    numbers for the scheduler, which count for all parts alike."""

    items: Sequence[Values]
    shared: Optional[Values] = None
    hints: Optional[Mapping[str, float]] = None


class Route(NamedTuple):
    """The result of a function of a node with ``route = "one"``: the successor's ``name``, and its outputs."""

    name: str
    outputs: Values
    hints: Optional[Mapping[str, float]] = None


def make(model: ModelConfig, lanes: Sequence[LaneInfo], directory: str) -> Engine:
    """The registry's entry."""
    return PythonEngine(model, directory)


class PythonEngine(Engine):
    """One host function. Knows no lane: the caller of ``run`` gives the thread. Changes nothing between calls."""

    def __init__(self, model: ModelConfig, directory: str) -> None:
        options = Options(model, KNOWN_OPTIONS)
        if not model.function and model.given is None:
            raise ConfigError(
                f"[model.{model.name}] function is missing: engine 'python' needs function = 'module:name'"
            )
        self._name = model.name
        self._spec = model.function or getattr(model.given, "__qualname__", repr(model.given))
        self._given: Function | None = model.given
        self._directory = directory
        self._batched = options.boolean("batched", False)
        self._stateful = options.boolean("stateful", False)
        self._example = options.text("example")
        self._shapes = model.shapes
        self._bytes = model.memory_bytes or NOMINAL_BYTES
        self._function: Function | None = None

    def load(self) -> Footprint:
        """Import the function. A module stays imported after ``unload``, as always in Python."""
        if self._function is None:
            self._function = self._found()
        return Footprint(self._bytes)

    def _found(self) -> Function:
        return self._given or _imported(self._spec, self._directory, f"[model.{self._name}] function")

    def unload(self) -> None:
        self._function = None

    def rows(self) -> RowFacts:
        return RowFacts(checked=False)

    def output_names(self) -> FrozenSet[str]:
        try:
            return returned_names(self._found())
        except EngineError:
            return frozenset()  # its check before loading says why

    def example(self) -> Values:
        if self._example:
            where = f"[model.{self._name}] options.example"
            item = _imported(self._example, self._directory, where)()
            if not isinstance(item, dict):
                raise EngineError(f"{where}: {self._example} returned {type(item).__name__}; expected a dict of inputs")
            return item
        if self._shapes:
            return {name: np.zeros(shape, np.float32) for name, shape in self._shapes.items()}
        raise ExampleUnknown(
            f"model {self._name!r}: an example input is not known; "
            f"give [model.{self._name}] options.example = 'module:function' that returns one item"
        )

    def open(self, lane: LaneInfo) -> Session:
        if self._function is None:
            raise EngineError(f"model {self._name!r} is not loaded; call load() before open()")
        return BlockingSession(self, keeps_apart=True)

    def run(self, batch: Batch) -> List[Result]:
        function = self._function
        if function is None:
            raise EngineError(f"model {self._name!r} is not loaded; call load() before run()")
        states = list(map(private, batch.states))
        if self._batched:
            items = [lent(item) for item in batch.items]
            own = [item.copy() for item in items]  # the function may change its dicts
            returned = self._call(function, (own, states) if self._stateful else (own,))
            if (
                not isinstance(returned, (list, tuple))
                or len(returned) != len(batch.items)
                or hasattr(returned, "_fields")
            ):
                raise EngineError(
                    f"model {self._name!r}: {self._spec} returned {_brief(returned)} for a batch of "
                    f"{len(batch.items)}; expected a list with one entry per item (options.batched)"
                )
            return [
                self._settled(value, index, item, given)
                for index, (value, item, given) in enumerate(zip(returned, items, batch.items))
            ]
        results = []
        for index, (given, state) in enumerate(zip(batch.items, states)):
            item = lent(given)
            own_item = item.copy()  # the function may change it
            try:
                value = function(own_item, state) if self._stateful else function(own_item)
            except BaseException as error:
                if is_interrupt(error):
                    raise
                value = error
            if isinstance(value, (KeyError, ValueError)):
                value = _explained(value, given)
            results.append(self._settled(value, index, item, given))
        return results

    def _call(self, function: Function, arguments: Sequence[Any]) -> Any:
        try:
            return function(*arguments)
        except Exception as error:  # a user's function may raise anything: it becomes the typed failure of this batch
            said = _explained(error, {}) if isinstance(error, ValueError) else error
            raise EngineError(f"model {self._name!r}: {self._spec} raised {told(said)} ({_place(error)})") from error

    def _settled(self, returned: Any, index: int, item: Values, given: Values) -> Result:
        """The result of one item, whose failure is its own."""
        try:
            result: Result = owned(self._result(returned, index), item, given)
            return result
        except BaseException as error:  # noqa: BLE001 what it returned may be anything, too
            return Result({}, error=own_failure(self._name, error))

    def _result(self, returned: Any, index: int) -> Result:
        """The function's result for one item, checked."""
        if isinstance(returned, BaseException):
            raise EngineError(
                f"model {self._name!r}: {self._spec} raised {told(returned, f' on item {index}')} ({_place(returned)})"
            ) from returned
        if not self._stateful:
            return self._plain(returned, index)
        if not isinstance(returned, tuple) or len(returned) != 2 or isinstance(returned, (Parts, Route)):
            raise EngineError(
                f"model {self._name!r}: {self._spec} returned {_brief(returned)} for item {index}; "
                "expected (outputs, new state), since options.stateful = true"
            )
        result = self._plain(returned[0], index)
        if result.error is not None:
            return result
        result.state = returned[1]
        result.state_bytes = result.state_bytes or state_size_bytes(returned[1])
        return result

    def _plain(self, returned: Any, index: int) -> Result:
        if isinstance(returned, dict):
            return Result(self._named(returned, index))
        if isinstance(returned, list) and all(isinstance(part, dict) for part in returned):
            return Result({}, parts=[self._named(part, index) for part in returned])
        if isinstance(returned, Parts):
            if not isinstance(returned.items, (list, tuple)):
                raise EngineError(
                    f"model {self._name!r}: {self._spec} returned Parts of {_brief(returned.items)} for "
                    f"item {index}; expected a list of dicts"
                )
            parts = [self._named(part, index) for part in returned.items]
            return Result(self._named(returned.shared or {}, index), parts=parts, hints=returned.hints)
        if isinstance(returned, Route):
            if not isinstance(returned.name, str):
                raise EngineError(
                    f"model {self._name!r}: {self._spec} returned Route({returned.name!r}, ...) for item "
                    f"{index}; expected the name of a node"
                )
            return Result(self._named(returned.outputs, index), route=returned.name, hints=returned.hints)
        if isinstance(returned, Result):
            result = copy.copy(returned)
            if result.error is None:
                result.outputs = self._named(result.outputs, index)
            return result
        raise EngineError(
            f"model {self._name!r}: {self._spec} returned {_brief(returned)} for item {index}; expected "
            "a dict of outputs, Parts(...), Route(...), Result(...), or of a fan-out a list of dicts"
        )

    def _named(self, values: Any, index: int) -> Values:
        if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
            raise EngineError(
                f"model {self._name!r}: {self._spec} gave {_brief(values)} for item {index}; "
                "expected a dict whose keys are the outputs' names"
            )
        return values


def _imported(spec: str, directory: str, where: str) -> Function:
    from edgeserve.engines.functions import import_function  # functions that a program gives are there already

    return import_function(spec, directory, where)


def returned_names(function: Function) -> FrozenSet[str]:
    """The names of outputs that a function's source tells: the keys of a ``TypedDict`` that it is said to return, and
    of the dicts that its ``return`` statements write out, alone or inside ``Route``, ``Parts``, ``Result`` and lists.
    """
    try:
        declared = typing.get_type_hints(function).get("return")
        source = inspect.getsource(function)
        tree = ast.parse(textwrap.dedent(source))
    except Exception:  # noqa: BLE001 annotations run code of their own; a function without source tells nothing
        return frozenset()
    is_typed_dict = isinstance(declared, type) and issubclass(declared, dict) and hasattr(declared, "__total__")
    found: Set[str] = set(declared.__annotations__) if is_typed_dict else set()
    body = tree.body[0] if tree.body else None
    waiting: List[ast.AST] = list(body.body) if isinstance(body, ast.FunctionDef) else []
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return):
            found.update(_written_keys(node.value))
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)
    return frozenset(found)


def _written_keys(value: Optional[ast.AST]) -> Set[str]:
    """The keys that are named values of a result as it is written out."""
    if isinstance(value, ast.Dict):
        return {key.value for key in value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    if isinstance(value, ast.Tuple):  # of a stateful function: the outputs, and the state
        return _written_keys(value.elts[0]) if value.elts else set()
    if isinstance(value, ast.List):
        return set().union(*map(_written_keys, value.elts)) if value.elts else set()
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in _MAKERS:
        return set().union(*map(_written_keys, value.args[: _MAKERS[value.func.id]])) if value.args else set()
    return set()


_MAKERS = {"Parts": 2, "Route": 2, "Result": 2}
"""The names of the classes that make a result, and how many of their first arguments may hold named values."""


# --- small helpers ----------------------------------------------------------------------------------------------------


def state_size_bytes(state: Any, depth: int = STATE_DEPTH_MAX) -> int:
    """An estimate of what a state occupies: arrays and strings by their bytes, containers by their content."""
    if state is None:
        return 0
    if isinstance(state, np.ndarray):
        return int(state.nbytes)
    size = sys.getsizeof(state, 64)
    if depth > 0:
        if isinstance(state, Mapping):
            return size + sum(state_size_bytes(value, depth - 1) for value in state.values())
        if isinstance(state, (list, tuple, set, frozenset)):
            return size + sum(state_size_bytes(value, depth - 1) for value in state)
    return size


def _explained(error: Exception, item: Values) -> Exception:
    """The error of a function that looks for an input that it was not given, whose text is only the name, or that
    writes into one, with what to do."""
    name = error.args[0] if error.args else None
    if not isinstance(name, str) or name in item:
        return error
    if isinstance(error, KeyError):
        found: Exception = KeyError(f"{name!r} is not among its inputs ({', '.join(sorted(item)) or 'none'})")
    elif name.endswith("read-only"):
        found = ValueError(f"{name}; inputs may be read elsewhere too: change a copy (x = x.copy(), x = x - 1)")
    else:
        return error
    return found.with_traceback(error.__traceback__)


def _place(error: BaseException) -> str:
    """File and line where the user's code raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else "returned, not raised"


def _brief(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 the message is about something else
        text = "(which cannot be shown)"
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
