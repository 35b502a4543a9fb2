# make demo: set up and run the main job.   make test: set up and run every test.   make help: the rest.
# Needs Python 3.11 or newer, make and git; no root. A second run repeats no set-up: the stamps lie in .venv.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
unexport PYTHONHOME PYTHONPATH   # what they name would come before our own environment

VENV := .venv
BIN := $(VENV)/bin
TOOLS := $(CURDIR)/.tools
PYTHON ?= $(shell requirements/find_python.sh)
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input

# Ranks are single-threaded in tests, as several of them share few cores.
TEST_ENV := PATH="$(CURDIR)/$(BIN):$$PATH:$(TOOLS)/bin" OMP_NUM_THREADS=1
TESTS ?= tests
PYTEST_ARGS ?=
DEMO_ARGS ?=

.PHONY: help setup dev demo test test-fast equivalence checkpoint-matrix monitoring lint format lock tools ops clean

help:  ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.setup  ## a virtual environment with shardyard, in .venv

dev: $(VENV)/.dev  ## the same with everything that tests and checks need

demo: setup  ## the main job: train, kill a rank, recover, export, generate (DEMO_ARGS="--json")
	$(BIN)/shardyard demo $(DEMO_ARGS)

test: dev tools ops  ## every test (TESTS=tests/unit PYTEST_ARGS="-x -k name")
	$(TEST_ENV) $(BIN)/python -m pytest $(TESTS) $(PYTEST_ARGS)

test-fast: dev  ## tests that need neither process groups nor Ray
	$(TEST_ENV) $(BIN)/python -m pytest tests/unit $(PYTEST_ARGS)

equivalence: dev ops  ## every engine, stage and offload against one process: docs/equivalence.md, about 15 minutes
	$(TEST_ENV) $(BIN)/python -m benchmarks.equivalence

checkpoint-matrix: dev ops  ## what every engine saves, every other one continues: docs/checkpoints.md, about 10 minutes
	$(TEST_ENV) $(BIN)/python -m benchmarks.checkpoint_matrix

monitoring: dev  ## Prometheus rules, Grafana dashboards and their pages, from the names of the metrics
	$(BIN)/python -m deploy.monitoring

lint: dev  ## format, lint, types, layers, and the deployment files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/lint-imports
	$(BIN)/hadolint deploy/docker/Dockerfile
	$(BIN)/docker-compose --file deploy/compose/compose.yaml config --quiet

format: dev  ## rewrite the sources in the common format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: dev  ## pin every dependency anew in requirements/constraints.txt
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras --no-annotate \
	    --no-emit-package shardyard --custom-compile-command "make lock" \
	    --constraints requirements/pins.txt pyproject.toml requirements/dev.txt \
	    --output-file requirements/constraints.txt

tools: $(TOOLS)/.unpacked  ## promtool and strace, unpacked from Debian packages where they are missing

ops: $(VENV)/.ops  ## what of DeepSpeed is compiled, for offload to NVMe; a minute

clean:  ## remove what make has made
	rm -rf $(VENV) $(TOOLS) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer on PATH; install one, or: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

$(VENV)/.setup: $(BIN)/python pyproject.toml requirements/constraints.txt
	@echo "installing shardyard and its dependencies into $(VENV): a minute or two"
	$(PIP) install --quiet --use-pep517 --constraint requirements/constraints.txt --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.setup requirements/dev.txt
	$(PIP) install --quiet --use-pep517 --constraint requirements/constraints.txt --requirement requirements/dev.txt
	@touch $@

$(TOOLS)/.unpacked: requirements/debian_tools.sh
	@sh requirements/debian_tools.sh $(TOOLS) promtool=prometheus prometheus=prometheus strace=strace,libunwind8,liblzma5 \
	    && touch $@ || true

# Where libaio's headers are not installed, those of a package that is only unpacked: their archive is linked in whole.
$(VENV)/.ops: $(VENV)/.setup
	@echo "compiling DeepSpeed's ops: a minute"
	@[ -e /usr/include/libaio.h ] || sh requirements/debian_tools.sh $(TOOLS) libaio.h=libaio-dev || true
	@CPATH="$(TOOLS)/root/usr/include" LIBRARY_PATH="$$(find $(TOOLS)/root/usr/lib -name libaio.a -exec dirname {} + 2>/dev/null)" \
	    $(BIN)/shardyard-worker ops build >/dev/null && touch $@ \
	    || echo "make: without them, offload to nvme is refused and its tests are skipped" >&2
