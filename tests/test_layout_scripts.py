"""The rooms of ``scripts/``, ``research/`` and ``tests/``: where a file may lie, and who may import whom.

``scripts/lib`` is what several scripts use, and knows none of them; ``research/common`` is that of studies. No script
imports a study. ``tests/unit`` follows the rooms of ``edgeserve/``;
what several tests use lies in ``tests/lib``.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

from for_each import for_each
from parsed import tree_of

ROOT = Path(__file__).resolve().parents[1]

# Room -> the rooms that it may import besides itself. Papers know nothing of each other.
PAPERS = sorted(
    f"replicate/{path.name}"
    for path in (ROOT / "research" / "replicate").iterdir()
    if path.is_dir() and path.name != "__pycache__"
)
ROOMS = {
    "scripts": {
        "lib": set(),
        "dev": {"lib"},
        "draw": {"lib"},
        "plans": {"lib"},
    },
    "research": {
        "common": {"lib"},
        "bench": {"common", "lib"},
        "figures": {"common", "lib", *PAPERS},
        **{paper: {"common", "lib"} for paper in PAPERS},
    },
}
EVERY_ROOM = {room for rooms in ROOMS.values() for room in rooms}
BY_NAME = {"scripts/demo.py", "scripts/gpu_check.py", "scripts/profile_device.py"}  # people start these by their names

PROGRAMS = {"common.bus_servers"}  # processes that studies start: importing is running them

TEST_ROOMS = {"jetson", "unit", "sim", "live", "hostile", "conformance", "golden", "gpu", "lib", "research"}
OF_THE_PROJECT = {
    "conftest.py",
    *(f"test_{name}.py" for name in ("boundary", "docs", "imports", "layout", "layout_scripts", "targets")),
}
"""They test no room."""


def sources(folder):
    """Path below the folder -> source."""
    return {
        path.relative_to(ROOT / folder).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


SCRIPTS = {f"{tree}/{path}": text for tree in ROOMS for path, text in sources(tree).items()}
TESTS = sources("tests")
TEST_MODULES = {"tests"} | {Path(path).stem for path in TESTS}


def parts_of(path):
    """``research/replicate/pard/run.py`` -> ``research``, ``replicate/pard``, ``run.py``."""
    tree, _, inside = path.partition("/")
    room, _, name = inside.rpartition("/")
    return tree, room, name


@functools.lru_cache(maxsize=None)
def imports_of(text):
    """Full names of what a source imports, but for type checkers alone."""
    found, waiting = set(), [tree_of(text)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)):
            waiting.extend(ast.iter_child_nodes(node))
    return found


def rooms_imported(text):
    """The rooms that a source imports from."""
    places = {name.replace(".", "/") for name in imports_of(text)}
    return {room for room in EVERY_ROOM for place in places if place.startswith(f"{room}/")}


@for_each(lambda: sorted(SCRIPTS))
def test_every_script_lies_in_a_room_and_does_not_repeat_its_name(path):
    tree, room, name = parts_of(path)
    if name == "__init__.py":
        assert room in {*ROOMS[tree], "replicate"}, f"{tree}/{room} has no line in ROOMS"
        return
    assert room in ROOMS[tree] or path in BY_NAME, f"{path} lies in no room: {sorted(ROOMS[tree])}"
    words = name[: -len(".py")].split("_")
    assert not set(words) & set(room.split("/")), f"{path}: the folder says {sorted(words)} already"


@for_each(lambda: sorted(SCRIPTS))
def test_scripts_import_only_what_their_room_may_and_never_a_test(path):
    tree, room, _ = parts_of(path)
    seen = rooms_imported(SCRIPTS[path]) - {room}
    may = ROOMS[tree].get(room, {"lib"})
    assert seen <= may, f"{path} must not import {sorted(seen - may)}"
    first = {name.split(".")[0] for name in imports_of(SCRIPTS[path])}
    assert not first & TEST_MODULES, f"{path} imports {sorted(first & TEST_MODULES)} from tests/"


@for_each(lambda: sorted(path for path, text in SCRIPTS.items() if "__main__" in text and rooms_imported(text)))
def test_a_script_that_is_started_by_its_path_finds_the_other_rooms(path):
    tree, _, _ = parts_of(path)
    depth = path.count("/")
    lines = f"sys.path.insert(0, str(Path(__file__).resolve().parents[{depth - 1}]))  # {tree}/\n"
    if tree == "research":
        lines = f'sys.path.insert(0, str(Path(__file__).resolve().parents[{depth}] / "scripts"))\n' + lines
    text = SCRIPTS[path]
    names = "|".join(room.replace("/", ".") for room in EVERY_ROOM)
    first = re.search(rf"(?m)^\s*from (?:{names})\b", text)
    assert lines in text and text.index(lines) < first.start(), f"{path} needs, before it imports a room: {lines}"


def test_every_study_can_be_imported():
    """Their tests are nightly: what a change of the package takes from them is seen at once here."""
    names = [path[len("research/") : -len(".py")].replace("/", ".") for path in SCRIPTS if path.startswith("research/")]
    code = (
        f"import importlib, sys; sys.path[:0] = {[str(ROOT / tree) for tree in ROOMS]}\n"
        f"for name in {sorted(set(names) - PROGRAMS)}:\n"
        "    importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@for_each(lambda: sorted(TESTS))
def test_every_test_lies_in_a_room(path):
    room, _, name = path.rpartition("/")
    if not room:
        assert name in OF_THE_PROJECT, f"tests/{name} belongs into a room: {sorted(TEST_ROOMS)}"
        return
    assert room.split("/")[0] in TEST_ROOMS, f"tests/{room} is no room: {sorted(TEST_ROOMS)}"
    assert name.startswith("test_") != (room == "lib"), (
        f"tests/{path}: what tests share lies in tests/lib, no test does"
    )
    if room == "unit":
        assert (ROOT / "edgeserve" / name[len("test_") :]).exists(), f"tests/{path}: edgeserve/ has no such file"
    elif room.startswith("unit/") and room != "unit/scripts":
        assert (ROOT / "edgeserve" / room[len("unit/") :]).is_dir(), f"tests/{room}: edgeserve/ has no such room"


@for_each(lambda: sorted(TESTS))
def test_no_test_imports_another(path):
    wrong = sorted(set(re.findall(r"(?m)^\s*(?:from|import) (test_\w+)", TESTS[path])))  # parsing takes seconds
    assert wrong == [], f"tests/{path} imports {wrong}: what they share belongs into tests/lib"


SAID = re.compile(r"\b(?:nobody|somebody|whoever|whatever|those (?:that|which|who))\b", re.IGNORECASE)
NO_ONE = re.compile(r"\b(?:anybody|everybody)\b|" + SAID.pattern, re.IGNORECASE)
BEGINS = re.compile(r'"""\s*(Of|What|How|Why|Whether|Who|Where|When|In the name of)\b')

SENTENCES = {**SCRIPTS, **{f"tests/{path}": text for path, text in TESTS.items()}}


PACKAGE = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in sorted((ROOT / "edgeserve").rglob("*.py"))
}


@for_each(lambda: sorted(PACKAGE))
def test_the_package_names_whom_it_means(path):
    """Also in what it prints: which client, request or model is meant."""
    found = [found.group() for found in NO_ONE.finditer(" ".join(PACKAGE[path].split()))]
    assert found == [], f"{path}: name the noun instead of {found}"


@for_each(lambda: sorted(SENTENCES))
def test_sentences_name_their_noun(path):
    """A docstring begins with its noun or verb, and says which client, request or model it means; so does a comment."""
    text = SENTENCES[path]
    if not (BEGINS.search(text) or SAID.search(" ".join(text.split()))):
        return  # parsing takes seconds
    strings = [node.value for node in ast.walk(tree_of(text)) if isinstance(node, ast.Expr)]
    docstrings = [
        (node.lineno, node.value) for node in strings if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    wrong = [line for line, said in docstrings if BEGINS.match(f'"""{said}') or SAID.search(" ".join(said.split()))]
    if SAID.search(text):
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        wrong += [token.start[0] for token in tokens if token.type == tokenize.COMMENT and SAID.search(token.string)]
    assert wrong == [], f"{path}: name the noun in the sentences of lines {sorted(wrong)}"
