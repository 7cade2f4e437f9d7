"""What the control groups of this process (a container, a service's ``MemoryMax``) leave of the machine.

Groups nest, and each level may have a bound of its own: the tightest counts. Version 2 has all controllers below one
directory, version 1 one directory for each. A container without a namespace of its own for groups reads the host's path
of its group and finds the files of that group at the top: directories that are not there are left out.
"""

from __future__ import annotations

import os
import re
from typing import Callable, Dict, List, Optional, Tuple

PLACE = "sys/fs/cgroup"
TEXT_BYTES_MAX = 1 << 16  # of one file: memory.stat has 2 KiB
NO_BOUND_BYTES = 1 << 60
"""Version 1 writes the largest number of pages where there is no bound."""

_INACTIVE = re.compile(r"^(?:total_)?inactive_file ([0-9]{1,19})$", re.MULTILINE)

Text = Callable[[str], str]
"""The text of a file below the root; ``""`` where it cannot be read."""


class ControlGroups:
    """The bounds of this process, read anew at each question; where its groups lie is found once. ``root`` stands for
    another machine; ``text`` reads a file below it."""

    def __init__(self, root: str = "/", text: Optional[Text] = None) -> None:
        self._root = root
        self._text = text or self._read
        self._memory = self._folders("memory")

    def memory_bound_bytes(self) -> Optional[int]:
        """The memory that the process may have at most, with all that shares its groups; None without a bound."""
        bounds = [bound for bound in map(self._bound, self._memory[1]) if bound is not None]
        return min(bounds) if bounds else None

    def memory_free_bytes(self) -> Optional[int]:
        """The memory that the process can still have; None without a bound. The page cache can be given back."""
        free = []
        for folder in self._memory[1]:
            bound = self._bound(folder)
            used = self._integer(folder, "memory.current" if self._memory[0] else "memory.usage_in_bytes")
            if bound is not None and used is not None:
                # version 1 has the numbers of the group alone first, then those with the groups below it
                inactive = _INACTIVE.findall(self._text(f"{folder}/memory.stat"))
                free.append(max(0, bound - used + (int(inactive[-1]) if inactive else 0)))
        return min(free) if free else None

    def cores(self) -> Optional[float]:
        """The cores that the process may keep busy; None without a bound."""
        is_unified, folders = self._folders("cpu")
        names = ("cpu.max",) if is_unified else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        found = []
        for folder in folders:
            words = " ".join(self._text(f"{folder}/{name}") for name in names).split()
            if len(words) == 2 and all(word.isdecimal() and len(word) < 16 and int(word) > 0 for word in words):
                found.append(int(words[0]) / int(words[1]))
        return min(found) if found else None

    def _bound(self, folder: str) -> Optional[int]:
        bound = self._integer(folder, "memory.max" if self._memory[0] else "memory.limit_in_bytes")
        return bound if bound is not None and bound < NO_BOUND_BYTES else None

    def _integer(self, folder: str, name: str) -> Optional[int]:
        text = self._text(f"{folder}/{name}").strip()  # "max" is no number
        return int(text) if text.isdecimal() and len(text) < 20 else None

    def _folders(self, controller: str) -> Tuple[bool, List[str]]:
        """True for version 2; the directories of a controller's groups from the top to the process's own."""
        paths: Dict[str, str] = {}
        for line in self._text("proc/self/cgroup").splitlines():
            number, _, rest = line.partition(":")
            names, _, path = rest.partition(":")
            paths.update(dict.fromkeys(names.split(","), path) if names else {number: path})
        is_unified = controller not in paths
        folder = PLACE if is_unified else f"{PLACE}/{controller}"
        folders = [folder]
        for part in paths.get("0" if is_unified else controller, "").split("/"):
            folder = f"{folder}/{part}"
            if part == ".." or (part and not os.path.isdir(os.path.join(self._root, folder))):
                break
            if part:
                folders.append(folder)
        return is_unified, folders

    def _read(self, path: str) -> str:
        try:
            with open(os.path.join(self._root, path), encoding="ascii", errors="replace") as file:
                return file.read(TEXT_BYTES_MAX)
        except OSError:
            return ""
