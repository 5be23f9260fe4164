# The same few commands everywhere. Each does its own set-up into .venv; a second call of a set-up does nothing.
#
#   make demo         tune a ResNet-18 on this machine and compare it with the default build and ONNX Runtime
#   make check        lint, and the tests that need no compiler, no PyTorch and no database: before every commit, under a minute
#   make test         the suite without its long tests, under eight minutes; T=tests/unit/test_budget.py runs a part of the whole
#   make test-all     the whole suite, and its slowest tests: before a release, and what CI runs
#   make lint         ruff, mypy, import-linter, hadolint
#   make help         this text
#   make bench        the benchmarks, each in a small way (hours in full: QUICK=); `make bench-setup` first installs the peers
#   make format       ruff's formatter
#   make lock         write the lock files again, after a change of pyproject.toml
#   make clean        remove what these commands made, except .venv
#
# PYTHON=python3.12 picks an interpreter, TORCH='torch==2.13.0 --index-url ...' another build of PyTorch (tests only).

SHELL := /bin/bash
.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: help setup demo check test test-all lint bench bench-setup format lock clean

VENV ?= .venv
PYTHON ?=
TORCH ?= torch==2.13.0
T ?=
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input

# TVM assumes hyper-threads and uses half of the cores unless it is told how many there are.
export TVM_NUM_THREADS ?= $(shell nproc 2>/dev/null || echo 2)
# Without its bytecode cache every process that a test starts would compile the sources anew.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV PYTHONDONTWRITEBYTECODE

help:
	@sed -n '/^#   make/s/^#   //p' Makefile

setup: $(VENV)/.project

$(VENV)/.python:
	.ci/venv $(VENV) $(PYTHON)
	touch $@

$(VENV)/.libraries: requirements.lock $(VENV)/.python
	$(PIP) install --quiet --require-hashes --only-binary :all: -r requirements.lock
	touch $@

$(VENV)/.project: pyproject.toml deploy/pages/package-lock.json deploy/pages/hatch_build.py $(VENV)/.libraries
	$(PIP) install --quiet --no-deps --no-build-isolation -e .
	touch $@

# On a line of its own: no lock fits every build of it, and only tests and the SDK's export of torch modules need it.
$(VENV)/.torch: $(VENV)/.libraries
	$(PIP) install --quiet $(TORCH)
	touch $@

demo: setup
	mkdir -p build
	$(BIN)/python examples/make_resnet18.py build/resnet18.onnx
	$(BIN)/pitchpipe tune build/resnet18.onnx --database sqlite:///build/demo.db

# Nothing else: `-p tests.bare` hides the compiler and PyTorch, and refuses a test that asks for PostgreSQL.
check: lint
	$(BIN)/python -m pytest -n $(TVM_NUM_THREADS) -p tests.bare tests/unit

# The tests of a file run one after another in one process, where they share what they compile (tests/conftest.py); acceptance
# tests, which are the longest, come first. One process more than there are cores: those tests wait as much as they compute.
SUITE := $(BIN)/python -m pytest -n $$(($(TVM_NUM_THREADS) + 1)) --dist loadfile --no-loadscope-reorder --durations=20

test: setup $(VENV)/.torch
ifeq ($(strip $(T)),)
	$(SUITE) -m 'not long'
else
	$(BIN)/python -m pytest $(T)
endif

test-all: setup $(VENV)/.torch
	$(SUITE)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file benchmarks/mypy.ini benchmarks
	$(BIN)/lint-imports
	$(BIN)/hadolint --config .hadolint.yaml Dockerfile

format: setup
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

QUICK ?= --quick
BENCHMARKS := throughput isolation false_wins agreement memory_bound operators lookup preparation latency torch_backend
BENCHMARKS += coverage onnx_nodes other_frontends torch_operators before_after kernels budgets dashboard_load learning template_trials untuned quantised side_by_side operator_latency

# The peers that the benchmarks compare with, and what reads their data; the product needs none of them.
bench-setup: setup $(VENV)/.torch
	$(PIP) install --quiet --require-hashes --only-binary :all: -r benchmarks/requirements.lock

bench: setup $(VENV)/.torch
	for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python benchmarks/$$script.py $(QUICK) || exit 1; done

COMPILE := $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-annotate --no-header
LOCK := $(COMPILE) pyproject.toml

lock: setup
	$(PIP) install --quiet uv
	$(LOCK) --quiet --extra server --extra compiler --extra cuda --extra dask --extra jax --extra tflite --extra otel --group dev -o requirements.lock
	$(LOCK) --quiet --extra server -c requirements.lock -o deploy/server.lock
	$(LOCK) --quiet --extra compiler -c requirements.lock -o deploy/worker.lock
	$(LOCK) --quiet --extra compiler --extra cuda -c requirements.lock -o deploy/worker-cuda.lock
	$(LOCK) --quiet --extra server --extra compiler --extra dask -c requirements.lock -o deploy/coordinator.lock
	$(COMPILE) --quiet --group build -c requirements.lock -o deploy/build.lock
	$(COMPILE) --quiet --group bench -c requirements.lock -o benchmarks/requirements.lock

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
