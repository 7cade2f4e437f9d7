"""``engine = "tensorrt"``: a model's plan on one device, from the cache or built now, and its lanes' sessions.

Options are :mod:`edgeserve.engines.tensorrt.settings`'; what the inputs mean is :mod:`edgeserve.engines.ports`'.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from edgeserve.config.model_files import graph_parts, model_path, stamps
from edgeserve.config.schema import ModelConfig
from edgeserve.engines.base import (
    CONTEXT_BYTES_MAX,
    LAYER_RUNS,
    Batch,
    Engine,
    Footprint,
    LaneInfo,
    OutputType,
    Result,
    RowFacts,
    Session,
    Values,
)
from edgeserve.engines.cuda.device import CudaDevice
from edgeserve.engines.cuda.driver import open_driver
from edgeserve.engines.cuda.graphs import summed
from edgeserve.engines.cuda.lane_stream import lane_stream
from edgeserve.engines.cuda.status import of_model
from edgeserve.engines.functions import import_function
from edgeserve.engines.options import Options, of_name
from edgeserve.engines.ports import Ports
from edgeserve.engines.tensorrt import building
from edgeserve.engines.tensorrt.build_errors import LibraryMissing, PlanRefused, forget_locals
from edgeserve.engines.tensorrt.io_tensors import Tensor, check_profiles, tensors_of
from edgeserve.engines.tensorrt.library import Library, check_installed, load_plugins, open_library
from edgeserve.engines.tensorrt.plan_file import (
    check_options,
    choose,
    deserialized,
    item_ranges_of,
    profiles_in,
)
from edgeserve.engines.tensorrt.plan_source import PlanSource, free_now, precision_text
from edgeserve.engines.tensorrt.plans import (
    ANY_VERSION,
    PlanCache,
    StoredPlan,
    built_elsewhere,
    built_on,
    identity_of,
    kernels_beside,
)
from edgeserve.engines.tensorrt.profile_context import Loaded
from edgeserve.engines.tensorrt.running import LaneContexts, TensorrtSession
from edgeserve.engines.tensorrt.runtime_cache import RuntimeCache, runtime_cache
from edgeserve.engines.tensorrt.settings import KNOWN_OPTIONS, BuildRequest, is_plan, own_sms, read_settings
from edgeserve.engines.tensorrt.shapes import Input, Profile, ProfileShape, item_ranges, longest_items
from edgeserve.errors import EngineError
from edgeserve.units import counted

log = logging.getLogger("edgeserve.tensorrt")


class TensorrtEngine(Engine):
    """One ONNX file as a TensorRT plan, or a plan that was built elsewhere. ``load`` may build the plan first, which
    takes minutes on a board: build plans ahead with ``edgeserve profile``. Knows no request and no stream of
    requests."""

    def __init__(self, model: ModelConfig, lanes: Sequence[LaneInfo], directory: str) -> None:
        options = Options(model, KNOWN_OPTIONS)
        self._name = model.name
        self._where = f"model {model.name!r}"
        self._model = model
        self._options = options
        self._lanes = list(lanes)
        self._directory = directory
        self._settings = read_settings(model, options, len(lanes), directory, own_sms(lane.sms for lane in lanes))
        self._loaded: Optional[Loaded] = None
        self._runtime: Any = None
        self._footprint = Footprint(0)
        self._beside_bytes: Optional[int] = None
        self._build_s = 0.0
        self._source = PlanSource(model.name, self._settings, self._lanes[0].device_index)
        self._contexts: Dict[int, Tuple[Any, LaneContexts]] = {}  # of each lane, by its common table
        self._opening = threading.Lock()  # lanes open on their own threads, and two captures at once gain nothing

    def check(self) -> None:
        try:
            check_installed(self._settings.library)
        except EngineError as error:
            raise of_model(self._name, error) from None

    def load(self) -> Footprint:
        """Find or build the plan, and bring it to the device."""
        if self._loaded is not None:
            return self._footprint
        path = model_path(self._model, self._directory)
        host_bytes = building.available_bytes()
        library = open_library(self._settings.library)
        load_plugins(self._settings.request.plugins, self._where)
        if not hasattr(library.trt.IExecutionContext, "execute_async_v3"):
            raise LibraryMissing(
                f"{self._where}: {library.name} {library.version} is too old; expected 8.5 or later (JetPack 5.1)"
            )
        try:
            device = CudaDevice(open_driver(self._settings.cuda), self._lanes[0].device_index)
        except EngineError as error:
            raise of_model(self._name, error) from error
        before_bytes = host_bytes if device.info.integrated else device.memory().free
        try:
            library.api.check_shares(self._settings.request.sms, device.driver.version())
            with device.current():
                plan = self._bring_given(library, device, path) if is_plan(path) else self._bring(library, device, path)
        except BaseException as error:
            self._runtime = None
            forget_locals(error)
            device.close()
            if isinstance(error, EngineError):
                raise of_model(self._name, error) from error
            raise
        assert self._loaded is not None
        work = sum(max(1, lane.depth) for lane in self._lanes) * self._loaded.io_bytes()
        if self._beside_bytes is None:  # measured once: a model that is loaded again is as large as it was
            beside = before_bytes - free_now(device) - plan.size_bytes
            self._beside_bytes = min(max(0, beside), CONTEXT_BYTES_MAX)
        self._footprint = Footprint(plan.size_bytes, work + self._beside_bytes, self._loaded.context_bytes)
        self._build_s = float(plan.metadata.get("build_s", 0.0))
        if "types" in plan.metadata:
            log.info("%s: %s", self._where, precision_text(self._settings.request, library, plan.metadata))
        return self._footprint

    def unload(self) -> None:
        """Free what the lanes have, then the plan. The order matters: contexts use the engine, graphs the contexts."""
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        while self._contexts:
            self._contexts.popitem()[1][1].free()
        device = loaded.device
        with device.current():
            del loaded  # the last reference to the engine, which goes before its runtime
            self._runtime = None
        device.close()

    def open(self, lane: LaneInfo) -> Session:
        """A session for ``lane``: its contexts are made, warmed up and captured here, before any request."""
        self._must_be_loaded()  # not a local: an error's traceback must not keep the engine alive
        common = lane.common if lane.common is not None else {}
        known = self._contexts.get(id(common))
        if known is not None and known[0] is common:
            return TensorrtSession(known[1])
        try:
            with self._opening:
                stream = lane_stream(lane._replace(common=common), self._settings.cuda)
                contexts = LaneContexts(
                    self._must_be_loaded(),
                    lane._replace(common=common),
                    stream,
                    self._copy_of_lane(self._must_be_loaded()),
                )
                self._contexts[id(common)] = (common, contexts)
        except EngineError as error:
            forget_locals(error)
            raise of_model(self._name, error) from error
        return TensorrtSession(contexts)

    def progress(self) -> str:
        return self._source.progress

    def layer_times(self, lane: LaneInfo, item: Values, size: int) -> List[Tuple[str, int]]:
        known = self._contexts.get(id(lane.common))
        if known is None:
            raise EngineError(f"{self._where} is not open on lane {lane.name!r}; call open(lane) first")
        return known[1].layer_times(Batch([item] * size, size), LAYER_RUNS)

    def figures(self) -> Mapping[str, Any]:
        if not self._settings.graph:
            return {}
        return {"graphs": summed([contexts.counts for _, contexts in list(self._contexts.values())])}

    @property
    def device_name(self) -> str:
        """The device's name, while the model is loaded."""
        return self._must_be_loaded().device.info.name

    @property
    def build_s(self) -> float:
        """The seconds that the plan took to build, now or when it was built."""
        return self._build_s

    def example(self) -> Values:
        if self._settings.example:
            where = self._options.where("example")
            item: Values = import_function(self._settings.example, self._directory, where)()
            return item
        return self._must_be_loaded().ports.example()

    def rows(self) -> RowFacts:
        return self._must_be_loaded().ports.rows("cuda")

    def outputs(self) -> Mapping[str, OutputType]:
        return {} if self._loaded is None else self._loaded.ports.outputs()

    def run(self, batch: Batch) -> List[Result]:
        raise EngineError(f"{self._where}: TensorRT runs in sessions; call open(lane) and launch(batch)")

    def _must_be_loaded(self) -> Loaded:
        if self._loaded is None:
            raise EngineError(f"{self._where} is not loaded; call load() before it is used")
        return self._loaded

    def _copy_of_lane(self, loaded: Loaded) -> int:
        """The copy of the profiles that the next lane uses: all the same one, but before TensorRT 8.6."""
        api = loaded.library.api
        if loaded.given:
            if self._contexts and not api.profiles_always_shared:
                raise EngineError(
                    f"{self._where}: a plan that was built elsewhere runs on one lane with TensorRT "
                    f"{loaded.library.version}, since contexts cannot share its profiles; name one in "
                    f"[model.{self._name}] lanes, or name the ONNX file instead of the plan"
                )
            return 0
        copies = api.profile_copies(self._settings.request.lanes)
        if loaded.library.api.profiles_shared:
            return 0
        if len(self._contexts) >= copies:
            raise EngineError(
                f"{self._where}: {counted(len(self._contexts), 'lane')} opened it before, and with "
                f"TensorRT {loaded.library.version} (before 8.6) each needs a copy of the profiles; it "
                f"was made for {counted(copies, 'lane')}"
            )
        return len(self._contexts)

    # --- the plan ---

    def _bring(self, library: Library, device: CudaDevice, path: str) -> StoredPlan:
        """The plan on the device. A plan that the library refuses is built again, once."""
        request = self._request(library)
        fixed = device.info if not request.compute_capabilities else None
        before = stamps(graph_parts(path))
        version = ANY_VERSION if request.version_compatible else library.version
        identity = identity_of(library.name, version, fixed, path, request)
        cache = PlanCache(self._settings.plans)
        if self.rebuilds:
            cache.remove(self._name, identity)

        def obtained() -> StoredPlan:
            return self._source.obtain(
                library, device, cache, identity, path, before, request, self._may_build, self.rebuilds
            )

        plan = obtained()
        try:
            self._loaded = self._deserialized(library, device, plan)
        except PlanRefused as error:
            if plan.was_built or not self._may_build:
                raise
            forget_locals(error)  # of the refused plan, whose memory the build needs
            cache.discard(plan, str(error))
            plan = obtained()
            self._loaded = self._deserialized(library, device, plan)
        other = built_elsewhere(plan.metadata, built_on(fixed))
        if other:
            log.info(
                "%s: its plan runs with %s; 'edgeserve profile --rebuild' times its kernels anew", self._where, other
            )
        self.rebuilds = False
        return plan

    @property
    def _may_build(self) -> bool:
        return self._settings.allow_build or not any(lane.serves for lane in self._lanes)

    def _request(self, library: Library) -> BuildRequest:
        """The request for the build: lanes count only where each needs a copy of the profiles."""
        request = self._settings.request
        return request._replace(lanes=library.api.profile_copies(request.lanes))

    def _bring_given(self, library: Library, device: CudaDevice, path: str) -> StoredPlan:
        """A plan that was built elsewhere, on the device: nothing is built, even where it is faulty."""
        check_options(self._options, path)
        runtime, engine = deserialized(library, path, self._where, self._settings.request)
        request = self._settings.request
        axes: Dict[str, Optional[int]] = {
            **dict.fromkeys(request.constants),
            **{state: of_name(request.state_axis, state) for state in request.states},
        }
        chosen = choose(profiles_in(library, engine), self._model.batch, axes, self._where)
        profiles = [(item.size, item.shapes) for item in chosen]
        numbers = [item.number for item in chosen]
        usual = {name: shape.usual for name, shape in item_ranges_of(chosen, axes).items()}
        model = replace(self._model, shapes={**usual, **self._model.shapes})
        self._runtime = runtime
        self._loaded = self._made(model, library, device, engine, numbers, profiles, path)._replace(
            ranges=item_ranges_of(chosen, axes), given=True
        )
        return StoredPlan(path, os.path.getsize(path), {}, was_built=False)

    def _deserialized(self, library: Library, device: CudaDevice, plan: StoredPlan) -> Loaded:
        """The plan as an engine, compared with what was asked for. Raises :class:`PlanRefused`."""
        request = self._settings.request
        runtime, engine = deserialized(library, plan.path, self._where, request)
        profiles: List[Tuple[int, Profile]] = [
            (int(size), {name: ProfileShape(*(tuple(row) for row in rows)) for name, rows in shapes.items()})
            for size, shapes in plan.metadata["profiles"]
        ]
        check_profiles(engine, profiles, self._where)
        numbers = range(len(profiles))
        loaded = self._made(self._model, library, device, engine, numbers, profiles, plan.path)
        inputs = [Input(item.name, item.dims) for item in loaded.tensors if item.is_input]
        ranges = {
            name: shape
            for name, shape in item_ranges(inputs, request, self._where).items()
            if any(dim < 0 for item in inputs if item.name == name for dim in item.dims[1:])
        }
        self._runtime = runtime
        return loaded._replace(ranges=ranges)

    def _tensors(
        self,
        library: Library,
        device: CudaDevice,
        engine: Any,
        numbers: Sequence[int],
        profiles: Sequence[Tuple[int, Profile]],
        kernels: Optional[RuntimeCache],
    ) -> List[Tensor]:
        stream = device.stream()
        try:
            return tensors_of(
                library,
                engine,
                [(number, shapes) for number, (_, shapes) in zip(numbers, profiles)],
                stream,
                self._where,
                kernels and kernels.config,
            )
        finally:
            stream.free()

    def _made(
        self,
        model: ModelConfig,
        library: Library,
        device: CudaDevice,
        engine: Any,
        numbers: Sequence[int],
        profiles: List[Tuple[int, Profile]],
        plan: str,
    ) -> Loaded:
        file = kernels_beside(plan, built_on(device.info)) if self._settings.timing_cache else ""
        kernels = runtime_cache(library, engine, file)
        tensors = self._tensors(library, device, engine, numbers, profiles, kernels)
        model, options = self._without_rows(model, tensors)
        ports = Ports(
            model,
            options,
            [item.port() for item in tensors if item.is_input],
            [item.port() for item in tensors if not item.is_input],
            longest_items(profiles),
        )
        settings = self._settings
        mapped = settings.mapped == "yes" or (
            settings.mapped == "auto" and device.info.integrated and device.info.can_map_host_memory
        )
        return Loaded(
            self._name,
            library,
            device,
            engine,
            ports,
            tensors,
            profiles,
            numbers,
            {},
            library.api.context_bytes(engine),
            mapped,
            settings.graph,
            kernels=kernels,
        )

    def _without_rows(self, model: ModelConfig, tensors: Sequence[Tensor]) -> Tuple[ModelConfig, Options]:
        """The model and its options; without a batch axis where the shape of an output depends on values."""
        varying = [tensor.name for tensor in tensors if tensor.varies]
        if not varying:
            return model, self._options
        if model.batch != (1,) or any(-1 in tensor.dims for tensor in tensors if tensor.is_input):
            raise EngineError(
                f"{self._where}: the shape of output {varying[0]!r} depends on the input's values: its rows are no "
                f"items of a batch. Set [model.{self._name}] batch = [1], and export the model with inputs of one "
                "shape, or run it with engine = 'onnx'"
            )
        if all(tensor.dims[:1] == (1,) for tensor in tensors if not tensor.is_input):
            return model, self._options
        model = replace(model, options={**model.options, "batch_axis": False})
        return model, Options(model, (*KNOWN_OPTIONS, "batch_axis"))
