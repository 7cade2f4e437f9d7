"""``edgeserve.policy``, ``edgeserve.engine``, ``edgeserve.front``: all that an extension imports, and no more than it
needs."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Iterator, List, Tuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("edgeserve.policy", "edgeserve.engine", "edgeserve.front")
PUBLIC = {"edgeserve", "edgeserve.errors", "edgeserve.testing", *MODULES}
"""The modules of this package that an extension may import, with what lies below ``edgeserve.testing``."""

FUNCTIONS = ("examples/listener/listener.py", "examples/reader/reader.py")


@pytest.mark.parametrize("name", MODULES)
def test_the_docstring_lists_every_name_and_each_can_be_had(name: str) -> None:
    module = importlib.import_module(name)
    listed = re.findall(r":(?:class|func|data):`(\w+)`", module.__doc__ or "")
    assert sorted(set(listed)) == sorted(module.__all__)
    for inner in module.__all__:
        assert getattr(module, inner) is not None


def test_a_policy_needs_no_engine_no_socket_and_no_world() -> None:
    code = "import sys; import edgeserve.policy; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=str(ROOT), check=True, stdout=subprocess.PIPE, text=True)
    found = done.stdout.split()
    rooms = {name.split(".")[1] for name in found if name.startswith("edgeserve.")}
    assert rooms <= {
        "policy",
        "sched",
        "config",
        "units",
        "errors",
        "compiled",
        "lognormal",
        "owners",
        "priority_class",
    }
    assert not {"zmq", "msgpack", "psutil", "onnxruntime", "torch"} & set(found)


def extensions() -> Iterator[Tuple[str, str]]:
    """Place -> source of the files that pages have a reader write and a configuration names (``"module:name"``), of
    tests of those, and of the examples' host functions."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        for name, source in re.findall(r"<!-- file: (\w+\.py) -->\s*```python\n(.*?)```", text, flags=re.S):
            if name.startswith("test_") or f'"{name[:-3]}:' in text:
                yield f"{page.relative_to(ROOT)}: {name}", source
    for path in FUNCTIONS:
        yield path, (ROOT / path).read_text(encoding="utf-8")


def private_imports(source: str) -> List[str]:
    names: List[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
    ours = [name for name in names if name.split(".")[0] == "edgeserve"]
    return [name for name in ours if name not in PUBLIC and not name.startswith("edgeserve.testing.")]


def test_extensions_import_public_modules_alone() -> None:
    found = dict(extensions())
    classes = [
        where for where, source in found.items() if re.search(r"\((Policy|Engine|Session|\w+Conformance)\)", source)
    ]
    assert len(found) > 10 and len(classes) >= 5
    assert {
        where: names for where, names in ((key, private_imports(text)) for key, text in found.items()) if names
    } == {}
    assert private_imports("from edgeserve.sched.policies import POLICIES") == ["edgeserve.sched.policies"]
