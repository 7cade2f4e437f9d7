"""Builds a TensorRT plan of each model of ``models.toml`` and prints what came of each, as a table.

    python -m edgeserve.commands.assets scripts/plans/assets.toml examples/{reader,listener}/assets.toml
    python scripts/plans/build_models.py [--library tensorrt_rtx] [--for 8.6] [NAME ...]

TensorRT-RTX builds without a GPU for a named compute capability (``--for``); TensorRT needs the GPU. Each build runs in
the process that the engine uses, with its bounds. Nothing is executed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(os.path.dirname(HERE)))

from edgeserve.config.loading import load_config  # noqa: E402
from edgeserve.config.model_files import model_path  # noqa: E402 after the path
from edgeserve.config.schema import ModelConfig  # noqa: E402
from edgeserve.engines.options import Options  # noqa: E402
from edgeserve.engines.tensorrt.building import BuildLimits, build_plan  # noqa: E402
from edgeserve.engines.tensorrt.settings import KNOWN_OPTIONS, BuildRequest, read_settings  # noqa: E402
from edgeserve.errors import EngineError  # noqa: E402

TIMEOUT_NS = 600 * 10**9


class Built(NamedTuple):
    """The result of one model. ``error`` is empty where a plan was built."""

    name: str
    profiles: List[Tuple[int, Dict[str, Any]]]
    layers: int
    plan_bytes: int
    build_s: float
    version: str
    error: str


def models() -> Dict[str, ModelConfig]:
    """The models of ``models.toml``, by name."""
    return dict(load_config(os.path.join(HERE, "models.toml")).models)


def request_of(model: ModelConfig, capabilities: Sequence[str] = ()) -> BuildRequest:
    """The order of the engine to the process that builds. Raises :class:`EngineError` when the file is missing."""
    settings = read_settings(model, Options(model, KNOWN_OPTIONS), 1, HERE)
    return settings.request._replace(file=model_path(model, HERE), compute_capabilities=list(capabilities))


def build(model: ModelConfig, library: str, capabilities: Sequence[str], directory: str) -> Built:
    """Build one plan in a process of its own."""
    path = os.path.join(directory, f"{model.name}.plan")
    try:
        answer = build_plan(
            library,
            request_of(model, capabilities),
            f"model {model.name!r}",
            path,
            "",
            BuildLimits(0, TIMEOUT_NS),
            lambda progress: None,
        )
    except EngineError as error:
        return Built(model.name, [], 0, 0, 0.0, "", f"{error.code}: {error}")
    return Built(
        model.name,
        [(size, shapes) for size, shapes in answer["profiles"]],
        answer["layers"],
        os.path.getsize(path),
        answer["build_s"],
        answer["version"],
        "",
    )


def main() -> int:
    """Build all, print a table; 1 when one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="models to build; all of them without")
    parser.add_argument("--library", default="tensorrt_rtx")
    parser.add_argument("--for", dest="capabilities", action="append", default=[], metavar="8.6")
    arguments = parser.parse_args()
    known = models()
    failed = 0
    print("| model | profiles (batch sizes) | layers | plan, MB | seconds |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as directory:
        for name in arguments.names or known:
            built = build(known[name], arguments.library, arguments.capabilities, directory)
            failed += bool(built.error)
            sizes = ", ".join(str(size) for size, _ in built.profiles)
            print(
                f"| {name} | {built.error[:400] or sizes} | {built.layers} | {built.plan_bytes / 1e6:.1f} | "
                f"{built.build_s:.1f} |",
                flush=True,
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
