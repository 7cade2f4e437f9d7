# Everything a newcomer needs: `make demo`, `make test`. Needs Python 3.8 to 3.13 with venv, and this make.
# PYTHON chooses the interpreter of a new virtual environment, VENV where it lies, ARGS go to pytest or the script,
# JOBS is how many run at once (0: one, in pytest's own process, for a debugger).

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
# Four at most: more of them starve the tests that measure time.
JOBS ?= $(shell cores=$$(nproc 2> /dev/null || echo 2); echo $$((cores > 4 ? 4 : cores)))
# And two that mostly wait, which go before the others (tests/conftest.py).
TESTERS = $(shell echo $$(($(JOBS) > 0 ? $(JOBS) + 2 : 0)))

IN := $(VENV)/bin/python
PIP := $(IN) -m pip --disable-pip-version-check --quiet
READER := examples/reader
ASSETS := $(sort $(wildcard examples/*/assets.toml))
NEEDS := pyproject.toml $(READER)/requirements.txt

.PHONY: help demo assets clients test test-changed test-portable test-torch test-ray gpu-check test-compiled compiled-core lint \
	nightly test-nightly test-drawn test-worlds soak plant-bugs mutants hostile site release ci clean

help:
	@echo "make demo        real models over the bus: reads pages, listens to voices, and is overloaded; about a minute"
	@echo "make assets      fetch the models and data of every example, about 20 s (EDGESERVE_CACHE says where to)"
	@echo "make clients     install what the Node.js package needs, so that its tests run (npm)"
	@echo "make test        the tests that need no GPU, but for what takes long: whole worlds and what is nightly"
	@echo "make test-changed  of these, those of the rooms that changed on this branch (since main, or SINCE=commit)"
	@echo "make test-portable  those of them that may fail on one Python alone: imports, contracts, wire, configuration"
	@echo "make test-torch  the tests of the torch engine and of cameras, in their own environment (Python 3.11: TORCH_PYTHON)"
	@echo "make test-ray    the tests of the deployment on Ray, in an environment of their own (Python 3.11: RAY_PYTHON)"
	@echo "make gpu-check   everything that needs a GPU: tests, benches, a report (without one the script ends with status 3);"
	@echo "                 with the libraries of GPU_PYTHON (here $(GPU_PYTHON)) and of the system"
	@echo "make test-compiled  the scheduler's tests with the compiled core, in a copy of the checkout"
	@echo "make compiled-core  compile that copy, and stop"
	@echo "make lint        ruff, and mypy (strict)"
	@echo "make nightly     what takes too long for each change, the next eight: its targets, one after the other"
	@echo "make test-nightly  tests of research, scripts, examples and published policies, and other dear ones"
	@echo "make test-drawn  tests with drawn examples, 400 of them each"
	@echo "make test-worlds  whole simulated worlds, with the compiled core"
	@echo "make soak        a thousand seeded simulations with faults"
	@echo "make plant-bugs  break the scheduler one line at a time: the tests must notice"
	@echo "make mutants     change decisions of the scheduler at random places: the tests must notice nine of ten"
	@echo "make hostile     a million mutated messages, a healthy client beside them"
	@echo "make release     build the source distribution and all wheels, try them, rehearse publishing; nothing is uploaded"
	@echo "make site        the documentation as a site, in build/site; a link that leads nowhere ends it"
	@echo "make ci          what CI runs: lint and portable tests on the oldest Python found, all tests on the newest"
	@echo "make clean       remove virtual environments, caches and build output of this directory"

# Bytecode is kept, also where the environment says otherwise: each process of the tests, several hundred of them, would
# compile the package anew, and pytest and Hypothesis, and every file of tests that it collects.
test test-changed test-portable test-nightly test-drawn test-torch test-ray test-compiled test-worlds: export PYTHONDONTWRITEBYTECODE =

# A stamp per set of packages: what is installed already is not looked at again until the needs change.
$(IN):
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 8) else "Python 3.8 or later is needed, this is " + sys.version.split()[0] + "; make PYTHON=python3.x ...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install 'pip>=21.3'    # older ones cannot install this project in place

$(VENV)/.demo: $(NEEDS) | $(IN)
	$(PIP) install --editable '.[onnx]' --requirement $(READER)/requirements.txt
	@touch $@

$(VENV)/.test: $(NEEDS) | $(IN)
	$(PIP) install --editable '.[onnx,http,grpc,test]' --requirement $(READER)/requirements.txt
	@touch $(VENV)/.demo $@    # the demo needs a part of these

# With all that `.test` has, in one call of pip: each builds the project and looks through what is installed.
$(VENV)/.lint $(VENV)/.compile: $(VENV)/.%: $(NEEDS) | $(IN)
	$(PIP) install --editable '.[onnx,http,grpc,test,$*]' --requirement $(READER)/requirements.txt
	@touch $(VENV)/.demo $(VENV)/.test $@

$(VENV)/.docs: $(NEEDS) | $(IN)
	$(PIP) install --editable '.[docs]'
	@touch $@

demo: $(VENV)/.demo
	$(IN) -m edgeserve.commands.assets $(READER)/assets.toml
	$(IN) scripts/demo.py $(ARGS)

assets: $(VENV)/.demo
	$(IN) -m edgeserve.commands.assets $(ASSETS)

clients:
	cd clients/node && npm install --ignore-scripts --no-package-lock --no-audit --no-fund --silent

# What is left to the night: whole simulated worlds (the marker `worlds`, with the compiled core), and what is `nightly`.
EACH_TIME := -m "not nightly and not worlds"

test: $(VENV)/.test
	$(IN) -m pytest -n $(TESTERS) $(EACH_TIME) $(ARGS)

test-changed: $(VENV)/.test
	$(IN) -m pytest -n $(TESTERS) $(EACH_TIME) $$($(IN) scripts/dev/changed_tests.py $(SINCE)) $(ARGS)

# What depends on the Python or on a library that each Python has another version of: imports, the contracts of engines,
# fronts and commands, the configuration, the wire, threads and processes, one test file of each way in. The golden traces
# and the digests of the soak say that decisions do not.
PORTABLE := tests/test_imports.py tests/golden tests/sim/test_soak.py::test_decisions_are_the_same_on_every_python \
	$(filter-out tests/unit/test_compiled.py,$(wildcard tests/unit/test_*.py)) \
	$(addprefix tests/unit/,config front fronts/http ipc loop offload taps) \
	$(addprefix tests/unit/engines/,test_libraries.py test_onnx.py test_host_engines.py lm/test_lm_engine.py) \
	$(addprefix tests/conformance/test_,$(addsuffix .py,commands engines extensions language_models \
		front_camera front_frigate front_http front_mqtt front_wyoming)) \
	tests/conformance/test_tensorrt.py::TestTensorrt85 \
	$(addprefix tests/live/test_,$(addsuffix .py,async_runtime bag bus camera forks http language_model mqtt plugins \
		python_apps runtime server shared_memory structured_answers tracing wyoming))

test-portable: $(VENV)/.test
	$(IN) -m pytest -n $(TESTERS) $(EACH_TIME) $(PORTABLE) $(ARGS)

test-nightly: $(VENV)/.test
	$(IN) -m pytest -n $(TESTERS) -m "nightly and not worlds" $(ARGS)

test-drawn: $(VENV)/.test
	$(IN) -m pytest -n $(TESTERS) -m hypothesis --hypothesis-profile nightly $(ARGS)

test-worlds: $(VENV)/.compile
	$(IN) scripts/dev/compiled_tests.py -n $(JOBS) -m worlds tests $(ARGS)

# One after the other, and each also where one before it failed.
nightly:
	$(MAKE) --keep-going --jobs 1 RELEASE=--pure test-nightly test-drawn test-worlds plant-bugs soak mutants hostile release

# torch is large, and not every Python has a wheel of it for the CPU: an environment of its own, with PyAV too.
TORCH_PYTHON ?= python3.11
TORCH_VENV ?= .venv-torch
TORCH_VERSION ?= 2.13.0

$(TORCH_VENV)/.torch: $(NEEDS)
	$(TORCH_PYTHON) -m venv $(TORCH_VENV)
	$(TORCH_VENV)/bin/python -m pip --disable-pip-version-check --quiet install torch==$(TORCH_VERSION) \
		--editable '.[onnx,http,test,gpu,lm-torch,camera]'
	@touch $@

test-torch: $(TORCH_VENV)/.torch
	$(TORCH_VENV)/bin/python -m pytest tests/conformance/test_torch.py tests/conformance/test_torch_cuda.py \
		tests/unit/engines tests/live/test_torch.py tests/live/test_init_files.py tests/gpu \
		tests/unit/fronts/test_sources.py tests/live/test_camera.py $(ARGS)

# Ray is large, and not for every Python that this project supports.
RAY_PYTHON ?= python3.11
RAY_VENV ?= .venv-ray

$(RAY_VENV)/.ray: $(NEEDS)
	$(RAY_PYTHON) -m venv $(RAY_VENV)
	$(RAY_VENV)/bin/python -m pip --disable-pip-version-check --quiet install --editable '.[test,ray]'
	@touch $@

test-ray: $(RAY_VENV)/.ray
	$(RAY_VENV)/bin/python -m pytest tests/unit/fronts/ray tests/live/test_ray.py $(ARGS)

# A GPU's libraries are the system's, or lie in the environment that jetson/setup.sh made: in no other can they be seen.
GPU_PYTHON ?= $(firstword $(wildcard /opt/edgeserve/venv/bin/python $(HOME)/.local/share/edgeserve/venv/bin/python) python3)
GPU_VENV ?= .venv-gpu

gpu-check:
	$(GPU_PYTHON) scripts/dev/gpu_env.py $(GPU_VENV)
	$(GPU_VENV)/bin/python scripts/gpu_check.py $(ARGS)

test-compiled: $(VENV)/.compile
	$(IN) scripts/dev/compiled_tests.py -n $(JOBS) $(EACH_TIME) $(ARGS)

compiled-core: $(VENV)/.compile
	$(IN) scripts/dev/compiled_tests.py --build

lint: $(VENV)/.lint
	$(IN) -m ruff check .
	$(IN) -m ruff format --check --quiet .
	$(IN) -m mypy edgeserve

soak: $(VENV)/.test
	$(IN) scripts/dev/soak.py $(ARGS)
	$(IN) scripts/dev/soak.py --recovery

plant-bugs: $(VENV)/.test
	$(IN) scripts/dev/plant_bugs.py $(ARGS)

hostile: $(VENV)/.test
	$(IN) scripts/dev/hostile.py $(ARGS)

mutants: $(VENV)/.test
	$(IN) scripts/dev/mutants.py --jobs $(JOBS) $(ARGS)

site: $(VENV)/.docs
	$(IN) scripts/dev/site.py $(ARGS)

release: | $(IN)
	$(IN) scripts/dev/release.py $(RELEASE) $(ARGS)

ci:
	.ci/run

clean:
	rm -rf .venv .venv-* .compiled build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find edgeserve -name "*.so" -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
