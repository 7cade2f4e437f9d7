"""The differences between TensorRT 8.5 and 11 and TensorRT-RTX: one table, and the one way around each difference.

:data:`NAMES` lists every name that this package uses and that not all versions have, and the old names that it must not
use. :class:`Api` looks once at a library for what the table lists; everything else of the package is written against
the names that all versions share. Versions are not compared: a name is there or it is not.

Source of the table: the bindings' sources and packages of the versions, read by ``scripts/dev/tensorrt_api.py``; a test
compares the two.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Tuple

import numpy as np

from edgeserve.errors import EngineError

SHARES_SINCE = 13, 0
"""CUDA's release with which plans of TensorRT 11.4, and of TensorRT for RTX, run on a part of a GPU."""


class Name(NamedTuple):
    """A name of TensorRT's Python interface that not all versions have.

    ``since`` is the first version that has it (``"8.5"``: that one or an earlier one), ``last`` the last one (``""``:
    the newest has it), ``rtx`` whether TensorRT-RTX has it. ``use`` says what this package does with it.
    """

    owner: str
    name: str
    since: str
    last: str
    rtx: bool
    use: str


NAMES: Tuple[Name, ...] = (
    # --- networks and precision ---
    Name("NetworkDefinitionCreationFlag", "EXPLICIT_BATCH", "8.5", "10.16", False, "set where it is: 8.x demands it"),
    Name("NetworkDefinitionCreationFlag", "STRONGLY_TYPED", "10.0", "", True, "set for precision = 'model'"),
    Name("BuilderFlag", "FP16", "8.5", "10.16", False, "precision = 'fp16'; 8.x also for models of float16 tensors"),
    Name("BuilderFlag", "INT8", "8.5", "10.16", False, "models with QuantizeLinear in weakly typed networks"),
    Name("DataType", "INT64", "10.0", "", True, "before it, int64 inputs and outputs are int32"),
    # --- building ---
    Name("Builder", "build_engine", "8.5", "8.6", False, "not used: build_serialized_network"),
    Name("IBuilderConfig", "max_workspace_size", "8.5", "8.6", False, "not used: set_memory_pool_limit"),
    Name("MemoryPoolType", "TACTIC_DRAM", "8.6", "", True, "options.build_memory, else what is free"),
    Name("IBuilderConfig", "builder_optimization_level", "8.6", "", True, "options.optimization_level"),
    Name("IBuilderConfig", "max_aux_streams", "8.6", "", True, "options.aux_streams"),
    Name("IBuilderConfig", "progress_monitor", "10.0", "", True, "progress; before it, elapsed time alone"),
    Name("IRuntimeConfig", "create_runtime_cache", "", "", True, "kernels compiled at load are kept, timings are not"),
    Name(
        "IOptimizationProfile",
        "profile_stream",
        "11.4",
        "",
        True,
        "where it is, a plan for a lane with sms is built on so many: else running it there is undefined",
    ),
    Name("IBuilderConfig", "set_compute_capability", "", "", True, "options.compute_capabilities"),
    Name("IBuilderConfig", "num_compute_capabilities", "", "", True, "options.compute_capabilities"),
    Name(
        "PreviewFeature",
        "PROFILE_SHARING_0806",
        "8.6",
        "10.16",
        False,
        "lets contexts share a profile; always so from 10, impossible before 8.6: a copy of each profile per lane",
    ),
    Name("BuilderFlag", "VERSION_COMPATIBLE", "8.6", "", True, "options.version_compatible"),
    Name("Runtime", "engine_host_code_allowed", "8.6", "", True, "as VERSION_COMPATIBLE"),
    Name("ParserError", "node_name", "10.0", "", True, "names the node of a parse error; before it, its number"),
    Name("ParserError", "node_operator", "10.0", "", True, "as node_name"),
    # --- running ---
    Name("ICudaEngine", "num_aux_streams", "8.6", "", True, "how many streams of ours each context is given"),
    Name("IExecutionContext", "set_aux_streams", "8.6", "", True, "as num_aux_streams"),
    Name("ICudaEngine", "num_bindings", "8.5", "8.6", False, "not used: num_io_tensors and tensor names"),
    Name("ICudaEngine", "get_profile_shape", "8.5", "8.6", False, "not used: get_tensor_profile_shape"),
    Name("IExecutionContext", "execute_async_v2", "8.5", "8.6", False, "not used: execute_async_v3"),
    Name("IExecutionContext", "set_binding_shape", "8.5", "8.6", False, "not used: set_input_shape"),
    Name(
        "ICudaEngine",
        "create_execution_context_without_device_memory",
        "8.5",
        "10.16",
        False,
        "contexts with memory of ours before the strategy",
    ),
    Name("ExecutionContextAllocationStrategy", "USER_MANAGED", "10.0", "", True, "contexts with memory of ours"),
    Name("ICudaEngine", "device_memory_size", "8.5", "10.16", False, "the memory's size before _v2"),
    Name("ICudaEngine", "device_memory_size_v2", "10.1", "", True, "the memory's size"),
    Name("IExecutionContext", "set_device_memory", "10.1", "", True, "gives the memory with its size"),
)


class Api:
    """The names of :data:`NAMES` that one TensorRT library has. ``trt`` is the module. Never changes after it was
    made."""

    def __init__(self, trt: Any) -> None:
        self.trt = trt
        self.version: str = str(getattr(trt, "__version__", "unknown"))
        self._has = {(row.owner, row.name): hasattr(getattr(trt, row.owner, None), row.name) for row in NAMES}

    def has(self, owner: str, name: str) -> bool:
        """True if the library has a name of the table."""
        return self._has[owner, name]

    # --- networks ---

    @property
    def weak_types(self) -> bool:
        """True if the builder may choose float16 or int8 for a float32 network."""
        return self.has("BuilderFlag", "FP16")

    def network_flags(self, strongly_typed: bool) -> int:
        """The flags of ``create_network``."""
        flags = self.trt.NetworkDefinitionCreationFlag
        bits = 0
        if self.has("NetworkDefinitionCreationFlag", "EXPLICIT_BATCH"):
            bits |= 1 << int(flags.EXPLICIT_BATCH)
        if strongly_typed and self.has("NetworkDefinitionCreationFlag", "STRONGLY_TYPED"):
            bits |= 1 << int(flags.STRONGLY_TYPED)
        return bits

    def limit_memory(self, config: Any, workspace_bytes: int, tactic_bytes: int = 0) -> None:
        """Bound the scratch memory of one layer, and the device memory of the builder while it times kernels (0: leave
        that to TensorRT, which takes 75 % of an integrated GPU's memory)."""
        pools = self.trt.MemoryPoolType
        config.set_memory_pool_limit(pools.WORKSPACE, workspace_bytes)
        if tactic_bytes and self.has("MemoryPoolType", "TACTIC_DRAM"):
            config.set_memory_pool_limit(pools.TACTIC_DRAM, tactic_bytes)

    @property
    def compiles_at_load(self) -> bool:
        """True if kernels are compiled when a context is made (TensorRT-RTX), and none are timed by a build."""
        return self.has("IRuntimeConfig", "create_runtime_cache")

    @property
    def profiles_shared(self) -> bool:
        """True if several contexts can use one optimisation profile."""
        return (
            self.has("PreviewFeature", "PROFILE_SHARING_0806")  # 8.6 and 10
            or self.has("ExecutionContextAllocationStrategy", "USER_MANAGED")
        )  # 10 and later: always

    @property
    def profiles_always_shared(self) -> bool:
        """True if that is so of every plan, however it was built."""
        return self.has("ExecutionContextAllocationStrategy", "USER_MANAGED")

    def profile_copies(self, lanes: int) -> int:
        """The number of copies of each optimisation profile that ``lanes`` need."""
        return 1 if self.profiles_shared else lanes

    def share_profiles(self, config: Any) -> None:
        """Let the contexts of several lanes use one profile."""
        if self.has("PreviewFeature", "PROFILE_SHARING_0806"):
            config.set_preview_feature(self.trt.PreviewFeature.PROFILE_SHARING_0806, True)

    def check_shares(self, sms: int, cuda: Tuple[int, int]) -> None:
        """Refuse multiprocessors of a lane's own (``sms``) where the driver's CUDA is too old for the library's plans
        there."""
        if sms and cuda < SHARES_SINCE and self.has("IOptimizationProfile", "profile_stream"):
            raise EngineError(
                f"[lane.NAME] sms: plans of this TensorRT run on a share of the multiprocessors with a driver of CUDA "
                f"{SHARES_SINCE[0]} or later, and this one is of CUDA {cuda[0]}.{cuda[1]}; leave sms out, or install a "
                "newer driver"
            )

    def limit_aux_streams(self, config: Any, count: int) -> None:
        """Streams beside the lane's that a plan may use. TensorRT chooses a number itself unless it is told."""
        if self.has("IBuilderConfig", "max_aux_streams"):
            config.max_aux_streams = count

    def aux_streams(self, engine: Any) -> int:
        """The number of streams beside the lane's that a plan uses."""
        return int(engine.num_aux_streams) if self.has("ICudaEngine", "num_aux_streams") else 0

    # --- contexts ---

    def create_context(self, engine: Any, runtime: Any = None) -> Any:
        """An execution context that has no device memory of its own; ``None`` on failure, as TensorRT returns it.
        ``runtime``: the runtime's configuration, where it has one."""
        if runtime is not None:
            return engine.create_execution_context(runtime)
        if self.has("ExecutionContextAllocationStrategy", "USER_MANAGED"):
            return engine.create_execution_context(self.trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        return engine.create_execution_context_without_device_memory()

    def context_bytes(self, engine: Any) -> int:
        """Device memory that a context needs while it runs, of the largest profile."""
        if self.has("ICudaEngine", "device_memory_size_v2"):
            return int(engine.device_memory_size_v2)
        return int(engine.device_memory_size)

    def give_memory(self, context: Any, pointer: int, size: int) -> None:
        """Let a context use ``size`` bytes at ``pointer`` while it runs."""
        if self.has("IExecutionContext", "set_device_memory"):
            context.set_device_memory(pointer, size)
        else:
            context.device_memory = pointer

    # --- types ---

    def dtype_of(self, kind: Any) -> Optional[np.dtype[Any]]:
        """numpy's type for one of TensorRT's, ``None`` where numpy has none (bfloat16, float8 and smaller)."""
        for name, dtype in _DTYPES.items():
            if getattr(self.trt.DataType, name, None) == kind:
                found: np.dtype[Any] = np.dtype(dtype)
                return found
        return None

    @property
    def narrows_int64(self) -> bool:
        """True if int64 inputs of a model are int32 in its engine."""
        return not self.has("DataType", "INT64")


_DTYPES: Dict[str, Any] = {
    "FLOAT": np.float32,
    "HALF": np.float16,
    "INT8": np.int8,
    "INT32": np.int32,
    "INT64": np.int64,
    "BOOL": np.bool_,
    "UINT8": np.uint8,
}
