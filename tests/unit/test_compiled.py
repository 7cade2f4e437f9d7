"""The compiled core: what is compiled, which core runs, and the rules that compiled sources must follow.

These tests run with either core. ``make test-compiled`` runs them, and those of the scheduler, with the compiled one.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import runpy
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES

import pytest

from edgeserve import compiled
from edgeserve.sched.policies import POLICIES
from edgeserve.sched.policy_api.policy import Policy

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGE = os.path.join(ROOT, "edgeserve")
SAY = "from edgeserve import compiled; print(compiled.running().kind)"
SOAK = """
import sys
from edgeserve.testing.soak.run import soak
from edgeserve.sched.policies import POLICIES
print([soak(seed, policies=tuple(POLICIES)).digest for seed in range(40, 48)])
"""


def python(code, home=ROOT, core=None):
    """Run code in a process of its own, with the package that lies in ``home``."""
    environment = {name: value for name, value in os.environ.items() if name != compiled.CHOICE}
    environment.update({"PYTHONPATH": home}, **({compiled.CHOICE: core} if core is not None else {}))
    return subprocess.run(
        [sys.executable, "-c", code], cwd=home, env=environment, capture_output=True, text=True, timeout=100
    )


@functools.lru_cache(maxsize=None)
def trees():
    found = []
    for path in compiled.sources(PACKAGE):
        with open(os.path.join(PACKAGE, path), encoding="utf-8") as file:
            found.append((path, ast.parse(file.read())))
    return found


# --- which core runs --------------------------------------------------------------------------------------------------


def test_the_core_that_was_asked_for_is_the_one_that_is_tested():
    core = compiled.running()
    wanted = os.environ.get(compiled.CHOICE)
    assert wanted is None or core.kind == wanted
    assert core.of == len(compiled.sources()) > 40
    assert not compiled.is_stale(), "compiled from other sources: make clean, or compile again"


def test_every_module_of_sched_is_compiled_but_the_packages_themselves():
    there = {
        os.path.relpath(os.path.join(folder, name), PACKAGE)
        for folder, _, names in os.walk(os.path.join(PACKAGE, "sched"))
        for name in names
        if name.endswith(".py") and name != "__init__.py"
    }
    assert there <= set(compiled.sources(PACKAGE))


def test_interpreted_ignores_an_extension_module_that_lies_beside_its_source(tmp_path):
    home = str(tmp_path)
    shutil.copytree(PACKAGE, os.path.join(home, "edgeserve"), ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    fake = os.path.join(home, "edgeserve", "sched", "core", "scheduler" + EXTENSION_SUFFIXES[0])
    with open(fake, "wb") as file:
        file.write(b"no library")
    assert "ImportError" in python("import edgeserve.sched.core.scheduler", home).stderr  # Python prefers it
    assert python(SAY, home, "interpreted").stdout == "interpreted\n"


def test_compiled_refuses_to_do_without(tmp_path):
    home = str(tmp_path)
    shutil.copytree(PACKAGE, os.path.join(home, "edgeserve"), ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    said = python("import edgeserve", home, "compiled")
    assert said.returncode == 1
    assert re.search(r"EDGESERVE_CORE=compiled, but \d+ modules .* are not compiled .*EDGESERVE_COMPILE=1", said.stderr)


def test_another_word_is_refused():
    assert "EDGESERVE_CORE='fast': expected interpreted or compiled" in python("import edgeserve", core="fast").stderr


def test_the_digest_follows_each_source_and_each_name(tmp_path):
    package = tmp_path / "edgeserve"
    shutil.copytree(os.path.join(PACKAGE, "sched"), package / "sched", ignore=shutil.ignore_patterns("__pycache__"))
    before = compiled.digest(str(package))
    assert before == compiled.digest(str(package))
    source = package / compiled.sources(str(package))[0]
    source.write_text(source.read_text() + "\n")
    changed = compiled.digest(str(package))
    source.rename(source.with_name("another.py"))
    assert len({before, changed, compiled.digest(str(package))}) == 3


def test_both_cores_decide_alike_under_every_policy():
    if compiled.running().kind != "compiled":
        pytest.skip("only the interpreted core is here (make test-compiled)")
    ran = [python(SOAK, core=core) for core in ("interpreted", "compiled")]
    assert ran[0].stdout == ran[1].stdout != "", ran[0].stderr + ran[1].stderr


# --- the build --------------------------------------------------------------------------------------------------------


def test_without_being_asked_the_build_needs_no_compiler(monkeypatch, capsys):
    reason = "Python 3.12 and later bring no setuptools, 3.8 brings one that does not read pyproject.toml"
    pytest.importorskip("setuptools", minversion="61", reason=reason)
    monkeypatch.setitem(sys.modules, "mypyc", None)
    monkeypatch.delenv("EDGESERVE_COMPILE", raising=False)
    monkeypatch.setattr(sys, "argv", ["setup.py", "--quiet", "--version"])
    monkeypatch.chdir(ROOT)
    runpy.run_path(os.path.join(ROOT, "setup.py"), run_name="__main__")
    assert capsys.readouterr().out.split()[-1] == "0.1.0"


def test_the_build_takes_the_pinned_compiler():
    with open(os.path.join(ROOT, "pyproject.toml"), encoding="utf-8") as file, open(
        os.path.join(ROOT, "setup.py"), encoding="utf-8"
    ) as setup:
        (pin,) = re.findall(r'compile = \["(mypy[^"]+)"', file.read())
        assert f'MYPY = "{pin}"' in setup.read()


# --- rules for sources that are compiled (docs/develop/compiled-sources.md) ----------------------------------------


@pytest.mark.parametrize("kind", [Policy, *POLICIES.values()], ids=lambda kind: kind.__name__)
def test_a_policy_of_the_users_own_may_build_on_any_policy(kind):
    own = type("Own", (kind,), {"plan": lambda self, board: None})
    assert own.plan is not kind.plan and own.options_type is kind.options_type


def test_a_function_that_may_give_a_value_ends_with_a_return():
    """Compiled, falling off the end of ``-> int | None`` is an error without an exception: the process dies."""
    found = [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in trees()
        for scope in ast.walk(tree)
        if not (isinstance(scope, ast.ClassDef) and any("Protocol" in ast.dump(base) for base in scope.bases))
        for node in ast.iter_child_nodes(scope)
        if isinstance(node, ast.FunctionDef) and gives_a_value(node) and not always_leaves(node.body)
    ]
    assert found == []


def gives_a_value(function):
    nothing = isinstance(function.returns, ast.Constant) and function.returns.value is None
    generator = any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(function))
    return function.returns is not None and not nothing and not generator


def always_leaves(body):
    last = body[-1]
    if isinstance(last, ast.If):
        return bool(last.orelse) and always_leaves(last.body) and always_leaves(last.orelse)
    if isinstance(last, ast.Try):
        return all(always_leaves(part) for part in (last.orelse or last.body, *(item.body for item in last.handlers)))
    if isinstance(last, ast.With):
        return always_leaves(last.body)
    if isinstance(last, ast.While):
        return isinstance(last.test, ast.Constant)
    return isinstance(last, (ast.Return, ast.Raise))


def test_no_source_reads_slots_at_run_time():
    """A compiled class has none."""
    found = [
        f"{path}:{node.lineno}"
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "__slots__"
    ]
    assert found == []


def test_no_attribute_becomes_a_keyword_of_c():
    """The compiler puts one more underscore before each name."""
    keywords = {
        "__thread",
        "__asm",
        "__inline",
        "__const",
        "__signed",
        "__volatile",
        "__attribute",
        "__restrict",
        "__extension",
        "__label",
        "__real",
        "__imag",
        "__typeof",
        "__int128",
        "__alignof",
    }
    found = [
        f"{path}:{node.lineno} {node.attr}"
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and f"_{node.attr}".rstrip("_") in keywords
    ]
    assert found == []


def test_no_method_of_an_open_class_has_a_default_of_type_float():
    """The compiler (mypy 1.14) passes 0.0 instead of the default when the object is of an interpreted subclass."""
    found = [
        f"{path}:{method.lineno} {method.name}"
        for path, tree in trees()
        for kind in ast.walk(tree)
        if isinstance(kind, ast.ClassDef) and any("mypyc_attr" in ast.dump(item) for item in kind.decorator_list)
        for method in kind.body
        if isinstance(method, ast.FunctionDef)
        for argument in defaulted(method)
        if isinstance(argument.annotation, ast.Name) and argument.annotation.id == "float"
    ]
    assert found == []


def defaulted(function):
    """Its parameters that have a default."""
    plain = [*getattr(function.args, "posonlyargs", []), *function.args.args]
    named = zip(function.args.kwonlyargs, function.args.kw_defaults)
    return plain[len(plain) - len(function.args.defaults) :] + [item for item, default in named if default is not None]


@pytest.mark.parametrize("kind", POLICIES.values(), ids=lambda kind: kind.__name__)
def test_no_policy_inherits_an_attribute_of_type_float(kind):
    """The compiler (mypy 1.14) loses which bit says that it is set, in an order that depends on the hash seed."""
    policy = kind("own", (), {})
    bases = {base.__name__ for base in kind.__mro__[1:]}
    inherited = {
        node.attr
        for _, tree in trees()
        for base in ast.walk(tree)
        if isinstance(base, ast.ClassDef) and base.name in bases
        for node in ast.walk(base)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    assert inherited
    assert [name for name in sorted(inherited) if type(getattr(policy, name, None)) is float] == []


def test_no_class_inherits_an_attribute_of_type_float_from_another_module():
    """The same of any class; within one module the compiler meets the base first."""
    classes = [(path, kind) for path, tree in trees() for kind in ast.walk(tree) if isinstance(kind, ast.ClassDef)]
    found = []
    for path, kind in classes:
        names = {base.id for base in kind.bases if isinstance(base, ast.Name)}
        for there, base in classes:  # of that name, wherever it is
            if there != path and base.name in names:
                found += [f"{path} {kind.name}: {base.name}.{attribute}" for attribute in float_attributes(base)]
    assert found == []


def float_attributes(kind):
    """The attributes that a class's methods set to a float: a literal, a quotient, a parameter or by annotation."""
    for method in kind.body:
        if isinstance(method, ast.FunctionDef):
            floats = {item.arg for item in method.args.args if "'float'" in ast.dump(item)}
            for node in ast.walk(method):
                target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
                if not isinstance(target, ast.Attribute) or not isinstance(target.value, ast.Name):
                    continue
                value = getattr(node, "value", None)
                if (
                    (isinstance(node, ast.AnnAssign) and "'float'" in ast.dump(node.annotation))
                    or (isinstance(value, ast.Constant) and type(value.value) is float)
                    or (isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div))
                    or (isinstance(value, ast.Name) and value.id in floats)
                ) and target.value.id == "self":
                    yield target.attr
