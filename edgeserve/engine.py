"""The names that an engine of your own imports, and that a host function may return.

Begin with the contract: subclass :class:`Engine`, and subclass
``edgeserve.testing.engine_conformance.EngineConformance`` in a test file, whose ``make`` calls :func:`make_engine` with
a :class:`ModelConfig` of ``engine = "my_module:MyEngine"``. Pytest then reports each missing part. A configuration
names the class in ``[model.NAME] engine``, in the same form. The page on engines is the tutorial and the reference.

* An engine that runs a batch to its end: :class:`Engine`, :class:`Batch`, :class:`Result`, :class:`Footprint`,
  :class:`OutputType`, :class:`RowFacts`, :data:`Values`.
* An engine whose device works by itself: :class:`Session`, :class:`Pending`, :class:`Finished`, :class:`LaneInfo`.
* An engine of sequences: :class:`SequenceInfo`, :class:`BatchControl`, :data:`ANSWERED`, :class:`Written`.
* Helpers: :class:`Options` reads ``[model.NAME] options``; :class:`Ports` with :class:`Port` and :data:`PORT_OPTIONS`
  turns items into arrays and back; :func:`resolve_path` finds a model's file; :func:`own_failure` is the error of one
  item for any exception that it raised, and :func:`with_failures` puts failed items between the results of the others.
* Errors: :class:`EngineError`, :class:`WrongInput`, :class:`WrongRows`, :class:`DeviceLost`, :class:`ExampleUnknown`.
* A host function (``engine = "python"``) returns a dict, a :class:`Result`, :class:`Parts` of a fan-out, or a
  :class:`Route`.
"""

from __future__ import annotations

from edgeserve.config.files import resolve_path
from edgeserve.config.schema import ModelConfig
from edgeserve.engines import make_engine
from edgeserve.engines.base import (
    ANSWERED,
    Batch,
    BatchControl,
    Engine,
    Finished,
    Footprint,
    LaneInfo,
    OutputType,
    Pending,
    Result,
    RowFacts,
    SequenceInfo,
    Session,
    Values,
    Written,
    own_failure,
    with_failures,
)
from edgeserve.engines.options import Options
from edgeserve.engines.port import Port
from edgeserve.engines.ports import PORT_OPTIONS, Ports
from edgeserve.engines.python import Parts, Route
from edgeserve.errors import DeviceLost, EngineError, ExampleUnknown, WrongInput, WrongRows

__all__ = [
    "ANSWERED",
    "PORT_OPTIONS",
    "Batch",
    "BatchControl",
    "DeviceLost",
    "Engine",
    "EngineError",
    "ExampleUnknown",
    "Finished",
    "Footprint",
    "LaneInfo",
    "ModelConfig",
    "Options",
    "OutputType",
    "Parts",
    "Pending",
    "Port",
    "Ports",
    "Result",
    "RowFacts",
    "Route",
    "SequenceInfo",
    "Session",
    "Values",
    "WrongInput",
    "WrongRows",
    "make_engine",
    "resolve_path",
    "Written",
    "own_failure",
    "with_failures",
]
