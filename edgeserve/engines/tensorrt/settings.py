"""The options of ``engine = "tensorrt"``, read and checked before any library is imported.

:class:`Settings` is what the rest of the package sees; :class:`BuildRequest` is the part that a plan depends on, in a
form that can be sent to another process and hashed.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Iterable, List, NamedTuple, Sequence, Tuple, Union

from edgeserve.config.files import cache_directory, file_sha256, resolve_path
from edgeserve.config.schema import ModelConfig
from edgeserve.engines.image import read_image
from edgeserve.engines.options import Options
from edgeserve.engines.ports import PORT_OPTIONS
from edgeserve.errors import ConfigError, nearest
from edgeserve.units import NS_PER_S, parse_size_bytes

LIBRARIES = ("tensorrt", "tensorrt_rtx")
"""The modules that can build and run a plan, in the order in which ``library = "auto"`` tries them."""

PRECISIONS = ("model", "fp16")

PLAN_ENDINGS = (".plan", ".engine", ".trt")
"""The endings of files that are plans already."""

WORKSPACE_BYTES = 256 << 20
"""Scratch memory that one layer's kernels may use. TensorRT's own default is all of the device's memory, which on a
board is the memory of everything else too."""

BUILD_TIMEOUT_NS = 3600 * NS_PER_S
"""A build that takes longer is ended: detection networks with several profiles take 5 to 30 minutes on an Orin Nano
(docs/guide/tensorrt.md)."""

OWN_OPTIONS = (
    "library",
    "precision",
    "ranges",
    "workspace",
    "optimization_level",
    "build_memory",
    "build_timeout",
    "allow_build",
    "plugins",
    "version_compatible",
    "plans",
    "timing_cache",
    "dla_core",
    "aux_streams",
    "compute_capabilities",
    "graph",
    "mapped",
    "cuda",
    "example",
    "image",
)
KNOWN_OPTIONS = (*OWN_OPTIONS, *(key for key in PORT_OPTIONS if key != "pad_batch"))

Range = Tuple[Tuple[int, ...], Tuple[int, ...], Tuple[int, ...]]
"""The smallest, usual and largest shape of an input."""


class BuildRequest(NamedTuple):
    """The settings that a plan is built from, besides the library and the device. Lists and dicts only, so that JSON
    keeps it.

    ``sizes`` are the batch sizes, rising, one optimisation profile each. Shapes are per item, without the batch axis:
    ``ranges`` (input -> [smallest, usual, largest]) and ``shapes`` (input -> lengths of open axes). ``states``,
    ``constants`` and ``masks`` (padded input -> its mask) are inputs whose shape follows from elsewhere.
    ``image`` has the fields of an :class:`~edgeserve.engines.image.ImageForm`, where frames are prepared in the plan.
    ``aux_streams``: the number of streams beside the lane's that the plan may use. ``plugins``: paths of
    libraries, whose content belongs to a plan.
    ``sms``: the multiprocessors that the smallest of its lanes has as its own (0: no lane has some).
    ``tactic_bytes`` bounds the builder's device memory (0: it does itself); what was free then makes no other plan.
    """

    file: str
    sizes: List[int]
    ranges: Dict[str, List[List[int]]]
    shapes: Dict[str, List[int]]
    states: List[str]
    state_axis: Union[int, Dict[str, int]]
    constants: Dict[str, Any]
    masks: Dict[str, str]
    precision: str
    workspace_bytes: int
    tactic_bytes: int
    optimization_level: int
    dla_core: int
    compute_capabilities: List[str]
    lanes: int
    image: Dict[str, Any] = {}
    aux_streams: int = 0
    plugins: List[str] = []
    sms: int = 0
    version_compatible: bool = False

    def identity(self) -> Dict[str, Any]:
        """The settings that two plans of one file must share to be the same."""
        kept = {key: value for key, value in self._asdict().items() if key not in ("file", "tactic_bytes")}
        for key in ("sms", "version_compatible"):
            if not kept[key]:
                del kept[key]  # as plans were named before there was one
        return {**kept, "plugins": [file_sha256(path) for path in self.plugins]}


class Settings(NamedTuple):
    """The options of one model. ``mapped``: ``"auto"``, ``"yes"`` or ``"no"``."""

    library: str
    request: BuildRequest
    plans: str
    timing_cache: bool
    build_memory_bytes: int
    build_timeout_ns: int
    allow_build: bool
    graph: bool
    mapped: str
    cuda: str
    example: str


def own_sms(of_lanes: Iterable[int]) -> int:
    """The number of multiprocessors to build for: a plan may run on more than it was built on, not on fewer."""
    return min((sms for sms in of_lanes if sms), default=0)


def is_plan(path: str) -> bool:
    """True if the file is a plan, by its ending."""
    return os.path.splitext(path)[1].lower() in PLAN_ENDINGS


def read_settings(model: ModelConfig, options: Options, lanes: int, directory: str, sms: int = 0) -> Settings:
    """Settings of ``model`` for so many ``lanes``, the smallest of which has ``sms`` multiprocessors of its own.
    Raises :class:`ConfigError` with the key, the value and the mend."""
    library = _one_of(options, "library", "auto", ("auto", *LIBRARIES))
    build_memory = _size(options, "build_memory", 0)
    plans = options.text("plans")
    image = read_image(options, model)
    request = BuildRequest(
        file="",
        sizes=sorted(set(model.batch)),
        ranges=_ranges(options),
        shapes={name: list(shape) for name, shape in model.shapes.items()},
        states=sorted(model.state),
        state_axis=options.integers("state_axis", 0, 0, 8),
        constants=options.table("constants"),
        masks=options.texts_by_name("mask"),
        precision=_one_of(options, "precision", "model", PRECISIONS),
        workspace_bytes=_size(options, "workspace", WORKSPACE_BYTES),
        tactic_bytes=0,
        optimization_level=options.integer("optimization_level", 3, 0, 5),
        dla_core=options.integer("dla_core", -1, 0, 7) if "dla_core" in options else -1,
        compute_capabilities=_capabilities(options),
        lanes=lanes,
        image={} if image is None else image._asdict(),
        aux_streams=options.integer("aux_streams", 0, 0, 7),
        sms=sms,
        version_compatible=options.boolean("version_compatible", False),
        plugins=[_plugins(name, directory, options.where("plugins")) for name in options.texts("plugins")],
    )
    return Settings(
        library=library,
        request=request,
        timing_cache=options.boolean("timing_cache", True),
        plans=resolve_path(plans, directory) if plans else os.path.join(cache_directory(), "tensorrt"),
        build_memory_bytes=build_memory,
        build_timeout_ns=options.duration_ns("build_timeout", BUILD_TIMEOUT_NS),
        allow_build=options.boolean("allow_build", False),
        graph=options.boolean("graph", True),
        mapped=_one_of(options, "mapped", "auto", ("auto", "yes", "no")),
        cuda=options.text("cuda", "auto"),
        example=options.text("example"),
    )


def _plugins(name: str, directory: str, where: str) -> str:
    path = os.path.abspath(resolve_path(name, directory))
    if not os.path.isfile(path):
        raise ConfigError(f"{where}: there is no file {path}; expected a library of TensorRT plugins (.so)")
    return path


def _one_of(options: Options, key: str, default: str, allowed: Sequence[str]) -> str:
    value = options.text(key, default)
    if value not in allowed:
        raise ConfigError(
            f"{options.where(key)} = {value!r}: expected one of {', '.join(map(repr, allowed))}"
            f"{nearest(value, allowed)}"
        )
    return value


def _size(options: Options, key: str, default: int) -> int:
    text = options.text(key)
    if not text:
        return default
    try:
        value: int = parse_size_bytes(text)
    except ValueError as error:
        raise ConfigError(f"{options.where(key)} = {text!r}: expected {error}") from None
    return value


def _capabilities(options: Options) -> List[str]:
    values = options.texts("compute_capabilities")
    for value in values:
        major, _, minor = value.partition(".")
        if not (major.isdecimal() and minor.isdecimal()):
            raise ConfigError(f"{options.where('compute_capabilities')} = {value!r}: expected numbers such as '8.6'")
    return sorted(values)


def _ranges(options: Options) -> Dict[str, List[List[int]]]:
    """``ranges = {x = [[3, 48, 32], [3, 48, 320], [3, 48, 960]]}``."""
    table = options.table("ranges")
    for name, value in table.items():
        rows = value if isinstance(value, (list, tuple)) else []
        good = (
            len(rows) == 3
            and all(isinstance(row, (list, tuple)) and len(row) == len(rows[0]) for row in rows)
            and all(isinstance(dim, int) and not isinstance(dim, bool) and dim >= 1 for row in rows for dim in row)
            and all(low <= usual <= high for low, usual, high in zip(*rows))
        )
        if not good:
            raise ConfigError(
                f"{options.where('ranges')}.{name} = {value!r}: expected the smallest, the usual and the "
                "largest shape of an item, without the batch axis, such as "
                "[[3, 48, 32], [3, 48, 320], [3, 48, 960]]"
            )
    return {name: [list(row) for row in value] for name, value in table.items()}
