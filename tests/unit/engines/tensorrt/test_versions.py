"""The table of what differs between TensorRT's versions, against their public names."""

from __future__ import annotations

import ast
import types
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="the double reads ONNX files; pip install -e '.[test]'")
pytest.importorskip("onnxruntime", reason="the double computes with onnxruntime; pip install -e '.[onnx]'")

import trt_double
import trt_names

from edgeserve.engines.tensorrt import versions

NUMBERED = [version for version in trt_names.VERSIONS if version != "rtx"]


def api(version):
    return versions.Api(types.SimpleNamespace(**trt_double.library(version)))


@pytest.mark.parametrize("row", versions.NAMES, ids=lambda row: f"{row.owner}.{row.name}")
def test_a_name_is_where_the_table_says_and_nowhere_else(row):
    known = trt_names.API["classes"][row.owner]
    assert row.name in known, "no version has it"
    has = known[row.name].split()
    assert ("rtx" in has) == row.rtx
    first = NUMBERED.index(row.since) if row.since else len(NUMBERED)
    last = NUMBERED.index(row.last) if row.last else len(NUMBERED) - 1
    assert [version for version in has if version != "rtx"] == NUMBERED[first : last + 1]


def test_the_double_has_no_name_that_no_version_has():
    for template in trt_double.TEMPLATES:
        known = set(trt_names.API["classes"][template.__name__])
        own = {name for name in vars(template) if not name.startswith("_")}
        assert own <= known, template.__name__


@pytest.mark.parametrize("version", trt_names.VERSIONS)
def test_the_double_of_a_version_has_that_versions_names_alone(version):
    for template in trt_double.TEMPLATES:
        built = trt_double.library(version)[template.__name__]
        public = {name for name in vars(built) if not name.startswith("_")}
        assert public == {name for name in vars(template) if name in trt_names.names_of(template.__name__, version)}


def test_parameters_are_given_by_place():
    """The double's methods call them by other names than TensorRT's."""
    methods = {name for members in trt_names.API["classes"].values() for name in members}
    for path in Path(versions.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods:
                own = isinstance(node.func.value, ast.Name) and node.func.value.id == "self"
                assert own or not node.keywords, f"{path.name}:{node.lineno} {node.func.attr}"


@pytest.mark.parametrize(
    ("version", "flags", "weak", "copies", "narrow"),
    [
        ("8.5", {"EXPLICIT_BATCH"}, True, 3, True),
        ("8.6", {"EXPLICIT_BATCH"}, True, 1, True),
        ("10.3", {"EXPLICIT_BATCH", "STRONGLY_TYPED"}, True, 1, False),
        ("11.4", {"STRONGLY_TYPED"}, False, 1, False),
        ("rtx", {"STRONGLY_TYPED"}, False, 1, False),
    ],
)
def test_what_the_engine_does_with_a_version(version, flags, weak, copies, narrow):
    one = api(version)
    kinds = trt_double.library(version)["NetworkDefinitionCreationFlag"]
    bits = one.network_flags(strongly_typed=True)
    assert {kind.name for kind in kinds if bits & 1 << int(kind)} == flags
    assert one.network_flags(strongly_typed=False) == sum(
        1 << int(kind) for kind in kinds if kind.name == "EXPLICIT_BATCH"
    )
    assert (one.weak_types, one.profile_copies(3), one.narrows_int64) == (weak, copies, narrow)
