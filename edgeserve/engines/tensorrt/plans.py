"""The cache of plans: what a plan belongs to, where it lies, and who may build it.

A plan runs on GPUs of one kind with the library version that built it, and nowhere else; TensorRT itself notices only
some of that. So a plan's name is a hash of everything it depends on (:class:`Identity`), a file of metadata beside it
repeats that in words with the plan's own hash, and a plan whose metadata do not fit to the letter is built again, never
run. What it runs with all the same, though its kernels were timed there, are facts beside it (:func:`built_on`): the
power mode, the driver, the card's name. Files appear whole (written beside and renamed); one process builds while
others wait.

Layout: ``NAME-HASH.plan``, ``NAME-HASH.json``, ``NAME-HASH.lock`` per plan, ``timing-HASH.cache`` per library and
machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import threading
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from edgeserve.config.files import read_sha256, sha256_of
from edgeserve.config.machine import slug
from edgeserve.config.model_files import content_sha256, graph_parts
from edgeserve.config.text_files import sync_folder
from edgeserve.engines.cuda.device_info import DeviceInfo
from edgeserve.engines.tensorrt.build_errors import BuildFailed
from edgeserve.engines.tensorrt.settings import BuildRequest
from edgeserve.errors import EngineError

log = logging.getLogger("edgeserve.tensorrt")

FORMAT = 2
"""The format of the metadata, and of the nodes that ``options.image`` puts in front of a network: raised when either
changes. A plan of another format is built again."""

ANY_VERSION = "version-compatible"
"""Stands for the library's version in the identity of a plan that later versions run too."""

LOCK_LOOK_S = 0.25
HASH_CHARACTERS = 16

Build = Callable[[str], Dict[str, Any]]
"""``build(path)`` writes a plan to ``path`` and returns the facts to keep with it."""


class Identity(NamedTuple):
    """The facts that a plan depends on. ``device`` is empty for plans that are not of one device (TensorRT-RTX, with
    ``compute_capabilities``)."""

    library: str
    version: str
    device: Dict[str, Any]
    release: str
    model_sha256: str
    request: Dict[str, Any]

    def digest(self) -> str:
        """The plan's name."""
        text = json.dumps([FORMAT, self._asdict()], sort_keys=True)
        return _short(text)


class StoredPlan(NamedTuple):
    """A plan that is known to be good for its identity."""

    path: str
    size_bytes: int
    metadata: Dict[str, Any]
    was_built: bool


def identity_of(
    library: str, version: str, device: Optional[DeviceInfo], model_path: str, request: BuildRequest, root: str = "/"
) -> Identity:
    """The facts that a plan for this machine depends on. ``root`` is the root of the system's files."""
    return Identity(
        library,
        version,
        {} if device is None else {key: device_facts(device)[key] for key in ("compute_capability", "multiprocessors")},
        l4t_release(root),
        content_sha256(graph_parts(model_path)),
        request.identity(),
    )


def built_on(device: Optional[DeviceInfo], root: str = "/") -> Dict[str, Any]:
    """The facts of this machine that kernels are timed with, and that a plan does not depend on."""
    facts = {} if device is None else device_facts(device)
    return {"power_mode": power_mode(root), **{key: facts[key] for key in ("name", "cuda") if key in facts}}


def built_elsewhere(metadata: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The facts that differ from those of the build, as text; empty for none."""
    then = metadata.get("built_on", {})
    names = {"power_mode": "power mode", "name": "GPU", "cuda": "CUDA driver"}
    return ", ".join(
        f"{names[key]} {_fact(now[key])} (built with {_fact(then[key])})"
        for key in now
        if key in then and then[key] != now[key]
    )


def kernels_beside(plan: str, facts: Mapping[str, Any]) -> str:
    """The file of the kernels that are compiled for a plan on a machine of these facts."""
    return f"{os.path.splitext(plan)[0]}-{_short(json.dumps(facts, sort_keys=True))}.kernels"


def _short(text: str) -> str:
    return sha256_of([text.encode()])[:HASH_CHARACTERS]


def _fact(value: Any) -> str:
    return ".".join(map(str, value)) if isinstance(value, list) else str(value) or "none"


def device_facts(device: DeviceInfo) -> Dict[str, Any]:
    """The facts of the GPU that a built engine depends on."""
    return {
        "name": device.name,
        "compute_capability": list(device.compute_capability),
        "multiprocessors": device.multiprocessors,
        "cuda": list(device.cuda),
    }


def power_mode(root: str = "/") -> str:
    """The name of a Jetson's power mode, ``""`` elsewhere. By name: the numbers mean other modes on other boards. Low
    modes take clusters of the GPU away, and kernels were timed for the present ones."""
    status = re.search(r"pmode:(\d+)", _text(root, "var/lib/nvpmodel/status"))
    if not status:
        return ""
    modes: Dict[str, str] = dict(
        re.findall(r"<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+)\s*>", _text(root, "etc/nvpmodel.conf"))
    )
    number = str(int(status.group(1)))
    return modes.get(number, f"number {number}")


def l4t_release(root: str = "/") -> str:
    """A Jetson's system release, such as ``36.4.3``, ``""`` elsewhere."""
    found = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", _text(root, "etc/nv_tegra_release"))
    return f"{found.group(1)}.{found.group(2)}" if found else ""


class PlanCache:
    """Plans in one directory. Any process may use it at the same time."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def path(self, name: str, identity: Identity, ending: str = "plan") -> str:
        """The path of a model's plan."""
        return os.path.join(self._directory, f"{slug(name)}-{identity.digest()}.{ending}")

    def timing_cache(self, identity: Identity, facts: Mapping[str, Any]) -> str:
        """The path of kernel timings that all models' builds share, of a machine with these ``facts``."""
        about = json.dumps([identity.library, identity.version, identity.device, facts], sort_keys=True)
        return os.path.join(self._directory, f"timing-{_short(about)}.cache")

    def find(self, name: str, identity: Identity) -> Optional[StoredPlan]:
        """The plan, if there is one that fits and is whole. The fault of a present one goes to the log."""
        path = self.path(name, identity)
        if not os.path.exists(path):
            return None
        why, metadata = self._fault(path, identity)
        if why:
            log.warning("%s is not used: %s", path, why)
            return None
        return StoredPlan(path, os.path.getsize(path), metadata, was_built=False)

    def obtain(
        self,
        name: str,
        identity: Identity,
        where: str,
        build: Build,
        waits_max: int,
        waiting: Callable[[int], None] = lambda looks: None,
    ) -> StoredPlan:
        """The plan, built now if there is none that fits. Of several processes one builds and the others wait for it,
        ``waits_max`` looks of :data:`LOCK_LOOK_S` at most; ``waiting`` is told of each. Raises what
        ``build`` raises, :class:`BuildFailed` when the wait is over, and :class:`EngineError` when the directory cannot
        be written."""
        found = self.find(name, identity)
        if found is not None:
            return found
        try:
            os.makedirs(self._directory, exist_ok=True)
            with self._locked(self.path(name, identity, "lock"), where, waits_max, waiting):
                return self.find(name, identity) or self._build(name, identity, build)
        except OSError as error:
            raise EngineError(
                f"{where}: plans cannot be kept in {self._directory} ({error}); set options.plans to a "
                "directory that this user may write, on a disk with room"
            ) from error

    def discard(self, plan: StoredPlan, why: str) -> None:
        """The plan cannot be run after all: the next :meth:`obtain` builds it again."""
        log.warning("%s is removed: %s", plan.path, why)
        _remove(plan.path)

    def remove(self, name: str, identity: Identity) -> None:
        """A plan that is there is not wanted any more: the next :meth:`obtain` builds another."""
        _remove(self.path(name, identity))

    def estimate_s(self, identity: Identity, model_bytes: int, profiles: int) -> Optional[float]:
        """The expected seconds of a build, from the builds remembered here: the last one of the same model, else
        those of the same device, by model size and number of profiles. ``None``: nothing was built here yet."""
        known = [about for about in self._all() if about.get("build_s") and about.get("model_bytes")]
        same = [about for about in known if about["identity"].get("model_sha256") == identity.model_sha256]
        if same:
            return float(max(about["build_s"] * profiles / max(1, about["profiles_count"]) for about in same))
        near = sorted(
            about["build_s"] / (about["model_bytes"] * max(1, about["profiles_count"]))
            for about in known
            if about["identity"].get("device") == identity.device
        )
        return near[len(near) // 2] * model_bytes * profiles if near else None

    # --- helpers ---

    def _build(self, name: str, identity: Identity, build: Build) -> StoredPlan:
        path = self.path(name, identity)
        beside = f"{path}.{os.getpid()}.part"
        try:
            kept = build(beside)
            metadata = {
                **kept,
                "format": FORMAT,
                "identity": identity._asdict(),
                "plan_sha256": read_sha256(beside),
                "plan_bytes": os.path.getsize(beside),
            }
            _write(f"{beside}.json", json.dumps(metadata, indent=1, sort_keys=True))
            # The metadata first: a plan without metadata that fit is never run.
            os.replace(f"{beside}.json", _metadata_path(path))
            os.replace(beside, path)
            sync_folder(os.path.dirname(path) or ".")
        finally:
            for rest in (beside, f"{beside}.json"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(rest)
        return StoredPlan(path, int(metadata["plan_bytes"]), metadata, was_built=True)

    def _fault(self, path: str, identity: Identity) -> Tuple[str, Dict[str, Any]]:
        """The fault of a plan, ``""`` without one; and its metadata."""
        try:
            metadata = json.loads(_text("", _metadata_path(path)))
        except ValueError:
            return "its metadata are missing or damaged", {}
        if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
            return "its metadata are of another version of EdgeServe", {}
        wanted = json.loads(json.dumps(identity._asdict()))
        found = metadata.get("identity")
        if found != wanted:
            differs = [key for key in wanted if not isinstance(found, dict) or found.get(key) != wanted[key]]
            return f"it was built for another {', '.join(differs)}", metadata
        if os.path.getsize(path) != metadata.get("plan_bytes") or read_sha256(path) != metadata.get("plan_sha256"):
            return "it is damaged", metadata
        return "", metadata

    def _all(self) -> List[Dict[str, Any]]:
        try:
            names = sorted(os.listdir(self._directory))
        except OSError:
            return []
        found = []
        for name in names:
            if name.endswith(".json"):
                try:
                    about = json.loads(_text(self._directory, name))
                except ValueError:
                    continue
                if isinstance(about, dict) and isinstance(about.get("identity"), dict):
                    found.append(about)
        return found

    @contextlib.contextmanager
    def _locked(self, path: str, where: str, waits_max: int, waiting: Callable[[int], None]) -> Iterator[None]:
        """Hold the lock of one plan; the kernel gives it back when a process dies."""
        with open(path, "a", encoding="ascii") as file:
            for look in range(waits_max + 1):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if look == 0:
                        log.info("%s: another process builds its plan; waiting for it", where)
                    if look == waits_max:
                        raise BuildFailed(
                            f"{where}: another process has been building this plan for "
                            f"{waits_max * LOCK_LOOK_S:.0f} s; see which one holds {path} (fuser)"
                        ) from None
                    waiting(look)
                    _SLEEP.wait(LOCK_LOOK_S)
            try:
                yield
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)


_SLEEP = threading.Event()  # never set: waiting for it is a sleep without a clock


def _remove(plan: str) -> None:
    for path in (plan, _metadata_path(plan)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _metadata_path(plan: str) -> str:
    return f"{plan[: -len('.plan')]}.json"


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _text(root: str, name: str) -> str:
    try:
        with open(os.path.join(root, name), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
