"""Compiles the core when ``EDGESERVE_COMPILE=1`` asks for it (``docs/guide/compiled.md``); the rest: pyproject.toml.

``EDGESERVE_COMPILE_LEVEL`` is the C compiler's level of optimisation: 2 unless told; 0 builds several times faster.
"""

import glob
import importlib.util
import os

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = os.path.dirname(os.path.abspath(__file__))
MYPY = "mypy[mypyc]==1.14.1"  # the last for Python 3.8, and the one that checks the types (pyproject.toml, lint)


def compiled_core():
    """``edgeserve/compiled.py``, which knows what is compiled, without importing the package."""
    spec = importlib.util.spec_from_file_location("compiled", os.path.join(HERE, "edgeserve", "compiled.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class CompileCore(build_ext):
    """Translates the core to C, then builds it as any extension. Translation takes long, so it waits for the build:
    pip asks for the metadata before."""

    def run(self):
        core = compiled_core()
        package = os.path.join(HERE, "edgeserve")
        library = core.LIBRARY + core.digest(package)
        for place in (package, os.path.join(self.build_lib, "edgeserve")):  # libraries of earlier sources
            for path in glob.glob(os.path.join(place, core.LIBRARY + "*")):
                os.remove(path)
        files = [os.path.join("edgeserve", path) for path in core.sources(package)]
        self.distribution.ext_modules = translate(files, "edgeserve." + library)
        self.swig_opts = None  # the one option that cannot be finalized twice
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()
        super().run()


def translate(files, library):
    """The extension modules of these files: a thin one per module, and the shared library with all code."""
    try:
        from mypyc.build import mypycify
    except ImportError:
        raise SystemExit(f"EDGESERVE_COMPILE=1 needs {MYPY}: install it, or leave out --no-build-isolation") from None
    # What is installed beside it must not decide whether it compiles: types of other packages are left to `make lint`.
    # No cache: mypyc leaves the C files of what it finds there out of the library, silently.
    options = ["--config-file=", "--no-site-packages", "--ignore-missing-imports", "--follow-imports=silent"]
    options.append("--cache-dir=" + os.devnull)
    extensions = mypycify(
        [*options, *files],
        separate=[(files, library)],
        debug_level="0",
        opt_level=os.environ.get("EDGESERVE_COMPILE_LEVEL", "2"),
    )
    if os.name == "posix":
        for (
            extension
        ) in extensions:  # the warnings that Python asks for, of generated code, take gcc two thirds of its time
            extension.extra_compile_args += ["-Wno-all", "-w"]
    return extensions


if os.environ.get("EDGESERVE_COMPILE", "0") in ("", "0"):
    setup()
else:
    os.chdir(HERE)
    setup(
        setup_requires=[MYPY],
        cmdclass={"build_ext": CompileCore},
        ext_modules=[Extension("edgeserve.not_yet_translated", [])],
    )  # CompileCore replaces it: mypyc comes later
