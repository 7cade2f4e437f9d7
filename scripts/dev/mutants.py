"""Change ``edgeserve/sched`` at random places, one at a time: the fast tests must notice nine of ten.

    python scripts/dev/mutants.py --seed 101              100 places, drawn by the seed
    python scripts/dev/mutants.py --seed 101 --list       name them and stop
    python scripts/dev/mutants.py --again survivors.json  those of an earlier --json that no test noticed

A mutant changes a decision inside a function: it flips a comparison, an arithmetic or boolean operator or a condition,
or returns the opposite of a condition. It changes no constant. Mutants that change nothing anybody could observe are
listed with the reason in ``equivalent_mutants.toml`` and do not count. A mutant that makes the tests hang is noticed.
``plant_bugs.py`` holds chosen bugs; this script draws others.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import accumulate
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Sequence, Set, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/
from lib.changed_tree import ROOT, ChangedTree, in_copies

from dev.forking import Answer, Job

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCHED = "edgeserve/sched"
EQUIVALENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "equivalent_mutants.toml")
CPU_S_MAX = 600
"""CPU time that a test may need without any mutant."""
RECORDED_AT_ONCE = 32
"""Tests that one fork notes the calls of: a fork has a bound on its time (``forking.py``), which all tests together
reach on a machine that is busy with other work."""
CPU_S_MIN, CPU_TIMES = 10, 5
"""With a mutant it may need so many times what it needed then, and some seconds; with more it hangs."""

COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.Mod: ("%", "+"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "|"),
}
TURNED_ROUND = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
"""Comparisons whose flip is the opposite condition."""
BOOLEAN = {ast.And: ("and", "or"), ast.Or: ("or", "and")}


class Around(NamedTuple):
    """The scope of a node: the names of classes and functions, and the innermost function's alone ("" in none)."""

    name: str
    function: str


class Mutant(NamedTuple):
    """One change at the byte ``at``. ``text`` is the whole changed file; ``nth`` tells equal changes of a function
    apart."""

    file: str
    around: Around
    line: int
    old: str
    new: str
    nth: int
    at: int
    text: str

    @property
    def key(self) -> Tuple[str, str, str, str, int]:
        """A mutant's name, which stays the same when lines above it move."""
        return (self.file, self.around.name, self.old, self.new, self.nth)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.around.name}: {self.old!r} -> {self.new!r}"


def _on_one_line(text: str) -> str:
    """The expression as it would stand on one line, however the formatter broke it."""
    text = " ".join(text.split())
    return re.sub(r",? (?=[)\]}])", "", re.sub(r"(?<=[(\[{]) ", "", text))


class Edit(NamedTuple):
    """Bytes ``start`` to ``end`` of a file become ``new``; ``node`` is the expression that is changed and shown."""

    start: int
    end: int
    new: bytes
    node: ast.AST


class Source:
    """A parsed file and the byte offsets of its nodes: ``ast`` counts columns in bytes of UTF-8."""

    def __init__(self, text: str) -> None:
        self.data = text.encode()
        self.tree = ast.parse(text)
        self._lines = [0]
        for line in self.data.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def start(self, node: Any) -> int:
        return int(self._lines[node.lineno - 1] + node.col_offset)

    def end(self, node: Any) -> int:
        return int(self._lines[node.end_lineno - 1] + node.end_col_offset)

    def shown(self, edit: Edit) -> Tuple[str, str]:
        """The expression before and after the edit, on one line each."""
        start, end = self.start(edit.node), self.end(edit.node)
        before, after = self.data[start : edit.start], self.data[edit.end : end]
        whole = (before + self.data[edit.start : edit.end] + after, before + edit.new + after)
        old, new = (_on_one_line(text.decode()) for text in whole)
        return old, new

    def operator(self, operator: str, new: str, left: ast.AST, right: ast.AST, node: ast.AST) -> Edit:
        """The edit of the operator that stands between two operands."""
        start, end = self.end(left), self.start(right)
        pattern = r"\s+".join(re.escape(word) for word in operator.split())
        found = re.search(
            (rb"\b%s\b" if operator.isalpha() or " " in operator else rb"%s") % pattern.encode(),
            re.sub(rb"#[^\n]*", lambda match: b" " * len(match.group()), self.data[start:end]),
        )
        assert found is not None, f"no {operator!r} on line {node.lineno}"  # type: ignore[attr-defined]
        return Edit(start + found.start(), start + found.end(), new.encode(), node)

    def negation(self, node: ast.AST) -> Edit:
        """The edit that turns a condition round. A shown ``not x`` becomes ``x``."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return Edit(self.start(node), self.start(node) + len(b"not"), b"", node)
        start, end = self.start(node), self.end(node)
        return Edit(start, end, b"not (" + self.data[start:end] + b")", node)


def conditions_of(node: ast.AST) -> List[ast.expr]:
    """The conditions by which a statement or a comprehension goes one way or the other, or that it returns."""
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        return [node.test]
    if isinstance(node, ast.comprehension):
        return node.ifs
    value = node.value if isinstance(node, ast.Return) else None
    is_condition = isinstance(value, (ast.Compare, ast.BoolOp)) or (
        isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not)
    )
    return [value] if value is not None and is_condition else []


def edits_of(node: ast.AST, source: Source) -> Iterator[Edit]:
    """The changes of one node."""
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        for index, operator in enumerate(node.ops):
            yield source.operator(*COMPARISONS[type(operator)], operands[index], operands[index + 1], node)
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        yield source.operator(*ARITHMETIC[type(node.op)], node.left, node.right, node)
    elif isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
        old, new = ARITHMETIC[type(node.op)]
        yield source.operator(old + "=", new + "=", node.target, node.value, node)
    elif isinstance(node, ast.BoolOp):
        for left, right in zip(node.values, node.values[1:]):
            yield source.operator(*BOOLEAN[type(node.op)], left, right, node)
    for condition in conditions_of(node):
        if not (isinstance(condition, ast.Compare) and type(condition.ops[0]) in TURNED_ROUND):  # done above
            yield source.negation(condition)


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def children_of(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when a function is called: no annotations, decorators or defaults, no imports for type
    checkers, no text for people."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(node, (ast.Call, ast.Lambda)):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not is_for_type_checkers(child) and not isinstance(child, ast.JoinedStr):
                yield child


def walk(node: ast.AST, around: Around, source: Source) -> Iterator[Tuple[Around, Edit]]:
    """Every edit inside the functions below a node, and what is around it."""
    for child in children_of(node):
        inside = around
        if isinstance(child, (ast.ClassDef, ast.FunctionDef)):
            name = f"{around.name}.{child.name}".lstrip(".")
            inside = Around(name, child.name if isinstance(child, ast.FunctionDef) else "")
        elif around.function:
            for edit in edits_of(child, source):
                yield inside, edit
        yield from walk(child, inside, source)


def mutants_of(file: str, text: str) -> List[Mutant]:
    """Every change of one file, in the order of its text."""
    source, found = Source(text), []
    seen: Dict[Tuple[str, str, str], int] = {}
    for around, edit in walk(source.tree, Around("", ""), source):
        old, new = source.shown(edit)
        nth = seen[around.name, old, new] = seen.get((around.name, old, new), -1) + 1
        changed = source.data[: edit.start] + edit.new + source.data[edit.end :]
        line = edit.node.lineno  # type: ignore[attr-defined]
        found.append(Mutant(file, around, line, old, new, nth, edit.start, changed.decode()))
    return found


def all_mutants(root: str = ROOT) -> List[Mutant]:
    """Every change of every file below ``edgeserve/sched``."""
    found: List[Mutant] = []
    for folder, _, names in sorted(os.walk(os.path.join(root, SCHED))):
        for name in sorted(names):
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8", newline="") as file:
                    found += mutants_of(os.path.relpath(path, root), file.read())
    return found


def drawn(mutants: Iterable[Mutant], seed: int, count: int) -> List[Mutant]:
    """One change of each of ``count`` places, by a hash of seed and key: editing one place draws no other places."""

    def rank(mutant: Mutant) -> str:
        return hashlib.sha256(repr((seed, mutant.key)).encode()).hexdigest()

    of_place: Dict[Tuple[str, int], Mutant] = {}
    for mutant in sorted(mutants, key=rank):
        of_place.setdefault((mutant.file, mutant.at), mutant)
    return list(of_place.values())[:count]


def read_equivalent(path: str = EQUIVALENT) -> Dict[Tuple[str, str, str, str], str]:
    """(file, function, old, new) -> why no test can notice it."""
    with open(path, encoding="utf-8") as file:
        rows = tomllib.loads(file.read()).get("mutant", [])
    return {(f"{SCHED}/{row['file']}", row["function"], row["old"], row["new"]): row["why"] for row in rows}


# --- the tests --------------------------------------------------------------------------------------------------------


def imports_in(path: str) -> Set[str]:
    """Full names of what a test file imports; of names from a package, the name below it too."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    found: Set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


REACH_SCHED = ("edgeserve.sched", "edgeserve.sim", "hand_world", "test_policy")
"""Imports by which a unit test reaches the scheduler."""


LEFT_OUT: List[str] = []
"""Paths that the fast tests are not taken from (``--leave-out``)."""


def fast_tests(root: str = ROOT) -> List[str]:
    """All that reach the scheduler without a bus: golden, unit tests that import it, simulations, conformance. Those
    marked ``worlds`` or ``nightly`` are not run."""
    unit = []
    for folder, _, names in sorted(os.walk(os.path.join(root, "tests", "unit"))):
        unit += [
            os.path.join(folder, name) for name in sorted(names) if name.startswith("test_") and name.endswith(".py")
        ]
    reach = [
        os.path.relpath(path, root) for path in unit if any(name.startswith(REACH_SCHED) for name in imports_in(path))
    ]
    return [
        path
        for path in ["tests/golden", "tests/sim", "tests/conformance/test_policies.py", *reach]
        if not path.startswith(tuple(LEFT_OUT))
    ]


class Selection:
    """The tests to run against a mutant: the ones that call its function, the quickest first; slow ones that noticed
    other mutants come before the rest.

    ``record`` is what ``forking.py`` noted of a run without any mutant. Where it knows of no call, all tests run.
    ``cpu_s``: as many tests as took so long together without any mutant, 0 for all.
    """

    def __init__(self, record: Mapping[str, Mapping[str, Any]], cpu_s: float = 0.0) -> None:
        self._noticed: Counter[str] = Counter()
        self._cpu_s = cpu_s
        self._called = {test: set(row["functions"]) for test, row in record.items()}
        self._seconds = {test: row["seconds"] for test, row in record.items()}

    def tests(self, mutant: Mutant) -> List[Tuple[str, int]]:
        """The tests, each with the CPU seconds after which it hangs."""
        place = f"{mutant.file[len(SCHED) + 1 :]}:{mutant.around.function}"
        calling = [test for test, called in self._called.items() if place in called] or list(self._called)
        calling.sort(key=lambda test: (self._seconds[test] / (1 + self._noticed[test]), test))
        if self._cpu_s:
            upto = list(accumulate([self._seconds[test] for test in calling]))
            calling = [test for test, seconds in zip(calling, upto) if seconds <= self._cpu_s] or calling[:1]
        return [(test, CPU_S_MIN + round(CPU_TIMES * self._seconds[test])) for test in calling]

    def noticed(self, test: str) -> None:
        """A test noticed a mutant: it may notice more."""
        self._noticed[test] += 1


class Tests:
    """A pytest in a copy of the project, which has collected the fast tests and runs the requested ones."""

    def __init__(self, tree: ChangedTree) -> None:
        self._pipe, theirs = Pipe()
        self._process = tree.pytest(
            "-W",
            "ignore",
            "-p",
            "dev.forking",
            *fast_tests(tree.home),
            "-m",
            "not worlds and not nightly",
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            environment={"MUTANTS_PIPE": str(theirs.fileno())},
        )
        theirs.close()
        try:
            self.names: List[str] = self._pipe.recv()
        except EOFError:
            self.names = []
        if not self.names:
            raise RuntimeError("the fast tests cannot be collected without any mutant: what do they say by themselves?")

    def answer(self, job: Job) -> Answer:
        """Run the tests of a job."""
        self._pipe.send(job)
        found: Answer = self._pipe.recv()
        return found

    def close(self) -> None:
        """The process ends."""
        self._pipe.close()
        self._process.wait()


def hunt(mutants: Sequence[Mutant], selection: Selection, clean: ChangedTree, jobs: int) -> List[Tuple[Mutant, str]]:
    """Judge every mutant, ``jobs`` at a time; each is reported when it is done."""
    found: List[Tuple[Mutant, str]] = []
    of_tree: Dict[str, Tests] = {}

    def one(mutant: Mutant, tree: ChangedTree) -> None:
        if tree.home not in of_tree:
            of_tree[tree.home] = Tests(tree)
        by = of_tree[tree.home].answer(Job(selection.tests(mutant), mutant.file, mutant.text)).failed
        selection.noticed(by)
        found.append((mutant, by))
        print(f"{len(found):4} {'noticed ' if by else 'SURVIVED'} {mutant}" + (f"  by {by}" if by else ""), flush=True)

    in_copies(mutants, one, clean, jobs)
    for tests in of_tree.values():
        tests.close()
    return found


def called_by_tests(clean: ChangedTree, jobs: int, file: str) -> Tuple[Dict[str, Dict[str, Any]], str]:
    """Run the tests without any mutant: which test calls what, and which fails if one does. ``file`` keeps that for the
    next time, when only the tests that it does not know run; the others are taken to pass. The file grows with each
    piece of the tests: a run that was interrupted goes on where it was."""
    record: Dict[str, Dict[str, Any]] = {}
    if file and os.path.exists(file):
        with open(file, encoding="utf-8") as opened:
            record = json.load(opened)
    failed: List[str] = []

    def one(part: int, tree: ChangedTree) -> None:
        tests = Tests(tree)
        with lock:
            for name in set(record) - set(tests.names):  # renamed or removed since
                del record[name]
        new = [(name, CPU_S_MAX) for name in sorted(tests.names)[part::jobs] if name not in record]
        for first in range(0, len(new), RECORDED_AT_ONCE):
            answer = tests.answer(Job(new[first : first + RECORDED_AT_ONCE], record=True))
            with lock:
                record.update(answer.record)
                if file:
                    with open(file, "w", encoding="utf-8") as opened:
                        json.dump(record, opened)
            if answer.failed:
                failed.append(answer.failed)
                break
        tests.close()

    lock = threading.Lock()
    in_copies(range(jobs), one, clean, jobs)
    return {name: row for name, row in record.items() if not name.startswith(tuple(LEFT_OUT))}, ", ".join(failed)


def chosen(args: argparse.Namespace, root: str) -> List[Mutant]:
    """The mutants that the options select, without equivalent ones."""
    mutants = all_mutants(root)
    if args.again:
        with open(args.again, encoding="utf-8") as file:
            keys = {tuple(row["key"]) for row in json.load(file)["survivors"]}
        picked = [mutant for mutant in mutants if mutant.key in keys]
    else:
        picked = [mutant for seed in args.seed for mutant in drawn(mutants, seed, args.count)]
        picked = list({mutant.key: mutant for mutant in picked}.values())
    if args.only:
        picked = [mutant for mutant in picked if args.only in str(mutant)]
    equivalent = read_equivalent()
    kept = [mutant for mutant in picked if mutant.key[:4] not in equivalent]
    print(f"{len(kept)} mutants, {len(picked) - len(kept)} equivalent ones left out, of {len(mutants)} possible")
    return kept


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0: enough were noticed; 1: too few; 2: the tests fail without any mutant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, nargs="+", default=[1], help="draw by this seed, or by each of several (1)")
    parser.add_argument("--count", type=int, default=100, help="how many places per seed (100)")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (2)")
    parser.add_argument("--must", type=float, default=0.9, help="the share that must be noticed (0.9)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only mutants whose line of output contains this")
    parser.add_argument("--again", default="", metavar="FILE", help="only the survivors that this --json names")
    parser.add_argument("--covering", default="", metavar="FILE", help="keep here which test calls what, and use that")
    parser.add_argument(
        "--cpu-s",
        type=float,
        default=0.0,
        metavar="S",
        help="per mutant the quickest tests, of so many seconds together (0: all that call it); "
        "what these do not notice counts as not noticed",
    )
    parser.add_argument("--list", action="store_true", help="name the mutants and stop")
    parser.add_argument("--json", default="", metavar="FILE", help="write share and survivors here")
    parser.add_argument(
        "--leave-out",
        nargs="+",
        default=[],
        metavar="PATH",
        help="no tests below these, say tests/sim: then more would be noticed than the share says",
    )
    args = parser.parse_args(argv)
    LEFT_OUT[:] = args.leave_out
    with ChangedTree() as clean:  # the working tree may be edited meanwhile
        mutants = chosen(args, clean.home)
        if args.list or not mutants:
            print("\n".join(map(str, mutants)))
            return 0
        began = time.monotonic()
        if not clean.is_imported():
            print("an installed edgeserve hides the copy; run this in an environment with an editable installation")
            return 2
        record, failed = called_by_tests(clean, args.jobs, args.covering)
        if failed:
            print(f"without any mutant already {failed} fails")
            return 2
        print(f"{len(record)} tests pass without any mutant, after {time.monotonic() - began:.0f} s", flush=True)
        rows = hunt(mutants, Selection(record, args.cpu_s), clean, args.jobs)
    survivors = [mutant for mutant, by in rows if not by]
    share = 1 - len(survivors) / len(rows)
    print("\nsurvivors:" if survivors else "")
    for mutant in survivors:
        print(f"  {mutant}")
    print(
        f"{len(rows) - len(survivors)} of {len(rows)} mutants noticed ({share:.1%}, {args.must:.0%} must be) "
        f"in {time.monotonic() - began:.0f} s"
    )
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            told = [{"where": str(mutant), "key": [*mutant.key]} for mutant in survivors]
            json.dump(
                {
                    "seeds": args.seed,
                    "noticed": len(rows) - len(survivors),
                    "of": len(rows),
                    "share": share,
                    "survivors": told,
                },
                file,
                indent=1,
            )
    return 0 if share >= args.must else 1


if __name__ == "__main__":
    sys.exit(main())
