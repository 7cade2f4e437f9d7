"""``chroot ROOT COMMAND...`` for boards that are not here: does to their files what the command would do.

It knows the commands of ``jetson/*.sh``, refuses others, and writes each one down beside the board. Started once per
command, so it imports little.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import Dict, List, Sequence


def package(name: str) -> str:
    """An installed package in ``dpkg``'s status file."""
    return (
        f"Package: {name}\nStatus: install ok installed\nVersion: 1.0\nArchitecture: arm64\nMaintainer: x\n"
        "Description: x\n\n"
    )


def read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def edit(path: str, change: Dict[str, str], drop: Sequence[str] = ()) -> None:
    """Replace, add and drop the lines of a colon file by their first field."""
    lines = {line.split(":")[0]: line for line in read(path).splitlines()}
    lines.update(change)
    write(path, "".join(f"{line}\n" for name, line in lines.items() if name not in drop))


def members(root: str, group: str, user: str, add: bool) -> None:
    line = next(line for line in read(f"{root}/etc/group").splitlines() if line.startswith(f"{group}:"))
    head, _, before = line.rpartition(":")
    names = [name for name in before.split(",") if name and name != user] + [user] * add
    edit(f"{root}/etc/group", {group: f"{head}:{','.join(names)}"})


def users(root: str, name: str, words: List[str]) -> None:
    """The commands about users and groups."""
    last = words[-1]
    if name == "useradd":
        edit(f"{root}/etc/passwd", {last: f"{last}:x:997:997::/var/lib/{last}:/usr/sbin/nologin"})
        edit(f"{root}/etc/group", {last: f"{last}:x:997:"})
    elif name == "userdel":
        for group in [line.split(":")[0] for line in read(f"{root}/etc/group").splitlines()]:
            members(root, group, last, add=False)
        for file in ("passwd", "group"):
            edit(f"{root}/etc/{file}", {}, drop=(last,))
    elif name == "usermod":
        members(root, words[-2], last, add=True)
    else:
        members(root, last, words[-2], add=False)


def package_that_needs(name: str, needs: str) -> str:
    """An installed package that depends on another."""
    return package(name).replace("Description:", f"Depends: {needs}\nDescription:")


def with_dependents(text: str, names: List[str]) -> List[str]:
    """The installed packages of these names and the ones that depend on them: what ``apt-get remove`` removes."""
    blocks = [dict(line.split(": ", 1) for line in block.splitlines()) for block in text.split("\n\n") if block.strip()]
    found = [block["Package"] for block in blocks if block["Package"] in names]
    while True:
        more = [
            block["Package"]
            for block in blocks
            if block["Package"] not in found and set(block.get("Depends", "").split(", ")) & set(found)
        ]
        if not more:
            return found
        found += more


def packages(root: str, words: List[str]) -> None:
    status = f"{root}/var/lib/dpkg/status"
    names = [word for word in words[2:] if not word.startswith("-") and word != "remove"]
    text = read(status)
    if "install" in words:
        text += "".join(package(name) for name in names)
    elif "remove" in words:
        if os.path.exists(f"{root}/var/lib/dpkg/taken") and "--simulate" not in words:
            raise SystemExit("E: Could not get lock /var/lib/dpkg/lock-frontend")
        gone = with_dependents(text, names)
        if "--simulate" in words:
            print("".join(f"Remv {name} [1.0]\n" for name in gone), end="")
            return
        text = "".join(
            f"{block}\n\n" for block in text.split("\n\n") if block.strip() and block.split("\n")[0][9:] not in gone
        )
    write(status, text)


def power(root: str, name: str, words: List[str]) -> None:
    last = words[-1]
    if name == "jetson_clocks":
        if "--store" in words:
            write(f"{root}{last}", "clocks\n")
        return
    wants_restart = f"< POWER_MODEL ID={last} NAME=MODE_50W >" in read(f"{root}/etc/nvpmodel.conf")
    if not wants_restart or sys.stdin.readline() == "YES\n":
        write(f"{root}/var/lib/nvpmodel/status", f"pmode:{int(last):04d}\nfmode:quiet\n")


def perform(root: str, words: List[str]) -> None:
    """One command, as far as its effect can be seen in files."""
    name, last = os.path.basename(words[0]), words[-1]
    if name == "env":
        perform(root, words[next(n for n, word in enumerate(words) if n and "=" not in word) :])
    elif name in ("useradd", "userdel", "usermod", "gpasswd"):
        users(root, name, words)
    elif name == "apt-get":
        packages(root, words)
    elif name in ("nvpmodel", "jetson_clocks"):
        power(root, name, words)
    elif name.startswith("python") and words[1:3] == ["-m", "venv"]:
        os.makedirs(f"{root}{last}/bin", exist_ok=True)
        shutil.copy(f"{root}{words[0]}", f"{root}{last}/bin/python")
        if os.path.exists(f"{root}/usr/bin/no-ensurepip"):
            raise SystemExit("ensurepip is not available")
        shutil.copy(f"{root}{words[0]}", f"{root}{last}/bin/pip")
    elif name == "systemctl" and words[1] in ("enable", "disable"):
        link = f"{root}/etc/systemd/system/multi-user.target.wants/{last}"
        if not os.path.exists(f"{root}/etc/systemd/system/{last}"):
            raise SystemExit(f"Failed to {words[1]} unit: Unit file {last} does not exist.")
        if words[1] == "enable":
            os.symlink(f"/etc/systemd/system/{last}", link)
        elif os.path.islink(link):
            os.unlink(link)
    elif words[1:] == ["-m", "edgeserve.commands.doctor.probes"]:
        raise SystemExit(os.path.exists(f"{root}/dev/no-kernel"))
    elif not (name in ("systemctl", "apt-mark") or words[1:3] == ["-m", "pip"]):
        raise SystemExit(f"the fake board does not know {words}")


def main(words: List[str]) -> None:
    """``chroot ROOT COMMAND...``."""
    root = words[0]
    with open(f"{os.path.dirname(root)}/performed", "a", encoding="utf-8") as file:
        file.write(" ".join(words[1:]) + "\n")
    if words[1:] == ["apt-mark", "showhold"]:
        print("nvidia-l4t-init")
    else:
        perform(root, words[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
