# make demo, make test, make test-all: set everything up in .venv and run. See README.md.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
BENCH := .venv-bench
BENCHMARKS := $(filter-out benchmarks/interleaved.py,$(wildcard benchmarks/*.py))
NATIVE := CMakeLists.txt $(wildcard src/sonde/stats/kernels/source/*)

.PHONY: demo test test-all check bench health format clean
.DEFAULT_GOAL := test

demo: $(VENV)/.installed
	$(BIN)/sonde demo

# On all cores. The slow tests (inductor, wheels, processes that are killed) are left to test-all.
test: $(VENV)/.installed
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal -m "not slow"

test-all: test
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal -m slow

check: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Peers live in an environment of their own; run nothing beside this.
bench: $(BENCH)/.installed
	for script in $(BENCHMARKS); do echo; echo "== $$script"; $(BENCH)/bin/python $$script; done

# Trains networks with planted faults and healthy ones, and writes what the rules find to the documentation.
health: $(VENV)/.installed
	$(BIN)/python -m benchmarks.health --seeds 0 1 2 --processes $(shell nproc) --write docs/rules-measured.md

$(VENV)/.installed: pyproject.toml constraints.txt $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all]' --group dev
	touch $@

$(BENCH)/.installed: pyproject.toml constraints.txt benchmarks/requirements.txt $(NATIVE)
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	$(BENCH)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[all]' --requirement benchmarks/requirements.txt
	touch $@

clean:
	rm -rf $(VENV) $(BENCH) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
