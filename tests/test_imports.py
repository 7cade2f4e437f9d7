"""Every module of the package can be imported on this Python. Where a library of one engine is missing, it compiles."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import subprocess
import sys

from for_each import for_each

import edgeserve

MODULES = sorted(
    item.name for item in pkgutil.walk_packages(edgeserve.__path__, "edgeserve.") if not item.name.endswith(".__main__")
)


LIBRARIES = {"av", "ctranslate2", "cuda", "gi", "llama_cpp", "opentelemetry", "ray", "torch", "transformers"}
"""Libraries that ``make test`` does not install, or not on every Python: only the module that uses one imports it."""


@for_each(lambda: MODULES)
def test_a_module_is_imported(name):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in LIBRARIES:
            raise
        importlib.util.find_spec(name).loader.get_code(name)


def test_the_tests_start_without_the_plugin_that_runs_them_again():
    """On a machine of a robot's maker, or one with a GPU, not everything is installed."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    words = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:rerunfailures", "tests/unit/engines/cuda"]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
