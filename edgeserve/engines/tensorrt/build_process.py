"""The program that builds one plan: ``python -m edgeserve.engines.tensorrt.build_process``, started by ``building``.

A build needs several times a model's memory and is what Linux kills when memory runs out; in a process of its own it
takes nothing else with it. The process reads one request (JSON) from its standard input and writes one line of JSON per
second, and per step of the builder, to its standard output: ``{"phase", "share", "elapsed_s"}``. The last line is
``{"built": ...}`` or ``{"error": code, "message": ...}``. It ends when its parent does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from typing import Any, Dict, TextIO

from edgeserve.engines.tensorrt.build_errors import KINDS
from edgeserve.engines.tensorrt.construct import construct
from edgeserve.engines.tensorrt.library import load_plugins, open_library
from edgeserve.engines.tensorrt.settings import BuildRequest
from edgeserve.engines.tensorrt.shapes import as_json
from edgeserve.errors import EngineError
from edgeserve.units import format_size

BEAT_S = 1.0
"""A line at least so often, so that the parent sees that the process lives."""

OOM_SCORE = "1000"
"""Linux's highest: when the board's memory runs out, this process is ended and not the server."""


class Reporter:
    """Writes the lines. Any thread may tell; a build step and the beat must not tear each other's line."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._started_s = time.monotonic()
        self._phase, self._share = "start", 0.0
        self._parent = os.getppid()

    def say(self, phase: str, share: float) -> None:
        """The builder is at this share of this phase."""
        self._phase, self._share = phase, share
        self.write({"phase": phase, "share": round(share, 4), "elapsed_s": round(self.elapsed_s(), 2)})

    def elapsed_s(self) -> float:
        """Seconds since the process began."""
        return time.monotonic() - self._started_s

    def write(self, line: Dict[str, Any]) -> None:
        """One line, at once."""
        with self._lock:
            self._out.write(json.dumps(line) + "\n")
            self._out.flush()

    def beat_for_ever(self) -> None:
        """The thread that shows that the process lives, and ends it when its reader is gone."""
        while True:
            time.sleep(BEAT_S)
            if os.getppid() != self._parent:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                self.say(self._phase, self._share)
            except (OSError, ValueError):
                os.kill(os.getpid(), signal.SIGKILL)


def build(request: Dict[str, Any], reporter: Reporter) -> Dict[str, Any]:
    """Build what the parent asked for and write the plan: the last line."""
    where = str(request["where"])
    timing_cache = request["timing_cache"]
    known = b""
    if timing_cache and os.path.isfile(timing_cache):
        with open(timing_cache, "rb") as file:
            known = file.read()

    def keep(timings: bytes) -> None:
        if not (timing_cache and timings):
            return
        beside = f"{timing_cache}.{os.getpid()}"
        try:
            with open(beside, "wb") as out:
                out.write(timings)
            os.replace(beside, timing_cache)
        except OSError as error:  # a plan that took an hour is not lost for its timings
            print(f"{where}: kernel timings cannot be kept: {error}", file=sys.stderr)
            with contextlib.suppress(OSError):
                os.unlink(beside)

    try:
        library, asked = open_library(request["library"]), BuildRequest(**request["request"])
        load_plugins(asked.plugins, where)
        built = construct(library, asked, where, reporter.say, known, keep)
    except EngineError as error:
        return {"error": error.code if error.code in KINDS else EngineError.code, "message": str(error)}
    except MemoryError:
        return {"error": "build_out_of_memory", "message": f"{where}: the process that builds ran out of memory"}
    except Exception as error:  # noqa: BLE001 the bindings raise RuntimeError, ValueError and types of pybind11
        return {
            "error": "build",
            "message": f"{where}: {request['library']} failed while building: {type(error).__name__}: {error}",
        }
    try:
        with open(request["plan"], "wb") as out:
            out.write(built.plan)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        return {
            "error": EngineError.code,
            "message": f"{where}: the plan ({format_size(len(built.plan))}) cannot be written in "
            f"{os.path.dirname(request['plan'])}: {error.strerror}; make room there, or set options.plans to "
            "a directory on a disk that has some",
        }
    return {
        "built": {
            "version": library.version,
            "profiles": as_json(built.profiles),
            "layers": built.layers,
            "types": built.types,
            "float32_nodes": built.kept,
            "build_s": round(reporter.elapsed_s(), 2),
        }
    }


def main() -> None:
    """Read the request, build, answer."""
    # Native libraries print to standard output; the lines go to a copy of it and the rest to standard error.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(OOM_SCORE)
    except OSError:
        pass  # not Linux, or a container that does not allow it
    reporter = Reporter(out)
    threading.Thread(target=reporter.beat_for_ever, daemon=True).start()
    reporter.write(build(json.load(sys.stdin), reporter))
    out.flush()
    os._exit(0)  # the library's threads and destructors have nothing left to do


if __name__ == "__main__":
    main()
