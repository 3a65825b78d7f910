# make demo, make test, make test-all: set everything up in .venv and run. See README.md.

# Set in many containers, where it makes each of the processes that the tests start compile sonde again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
BENCH := .venv-bench
NEWEST := .venv-newest
BENCHMARKS := $(filter-out $(addprefix benchmarks/,interleaved.py models.py committed.py quick.py),$(wildcard benchmarks/*.py))
NATIVE := CMakeLists.txt $(wildcard src/sonde/stats/kernels/source/*)

.PHONY: demo test test-all test-newest check check-page docs bench bench-quick gpu health format clean
.DEFAULT_GOAL := test

demo: $(VENV)/.installed
	$(BIN)/sonde demo

# On all cores. The slow tests (inductor, wheels, processes that are killed) are left to test-all.
test: $(VENV)/.installed
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal -m "not slow"

# With TURN=0/2 one half of the slow tests, with TURN=1/2 the other.
test-all: test
	TURN=$(TURN) $(BIN)/python -m pytest --numprocesses auto --dist worksteal -m slow

# With the newest torch that pip finds, in an environment of its own: gigabytes, where the newest has no build for the CPU alone.
# Before a release; docs/compatibility.md says with what versions it was run, and how it ended.
test-newest: $(NEWEST)/.installed
	$(NEWEST)/bin/python -m pytest --numprocesses auto --dist worksteal -m "not slow"
	@$(NEWEST)/bin/python -c "import platform, torch; print('with torch', torch.__version__, 'and Python', platform.python_version())"

check: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The scripts of the page: their form, names that exist and are used, and types. Node is the machine's own (18 or newer); what it
# runs comes from npm, as pinned.
check-page: node_modules/.installed
	node_modules/.bin/prettier --check --log-level warn 'src/sonde/view/assets/**/*.{js,css}' eslint.config.js
	node_modules/.bin/eslint src/sonde/view/assets
	node_modules/.bin/tsc --project .

# The site, in docs/_build; a warning is an error, and nothing is asked of a network.
docs: $(VENV)/.installed
	$(BIN)/python -m sphinx -b html -W --keep-going -q docs docs/_build/html
	@echo docs/_build/html/index.html

format: $(VENV)/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	if [ -d node_modules ]; then node_modules/.bin/prettier --write --log-level warn 'src/sonde/view/assets/**/*.{js,css}'; fi

# Peers live in an environment of their own; run nothing beside this.
bench: $(BENCH)/.installed
	for script in $(BENCHMARKS); do echo; echo "== $$script"; $(BENCH)/bin/python $$script; done

# Two minutes, without peers: the ratios that must not grow unnoticed, beside those that were committed. It reports, and fails nothing.
bench-quick: $(VENV)/.installed
	$(BIN)/python benchmarks/quick.py

# On a machine with an accelerator: its tests, each situation of a training on it, and its costs, as one page to send back.
gpu: $(VENV)/.installed
	$(BIN)/python -m benchmarks.accelerator

# Trains networks with planted faults and healthy ones, and writes what the rules find to the documentation: some five seconds for
# each of 219 trainings and seed, on one core. What has been trained is kept in runs/health, and only judged again, a second each,
# so that a run that was cut short goes on, and a changed rule needs no training. Remove the folder where what is recorded changes.
health: $(VENV)/.installed
	$(BIN)/python -m benchmarks.health --seeds 0 1 2 --processes $(shell nproc) --runs runs/health --write docs/rules-measured.md

$(VENV)/.installed: pyproject.toml constraints.txt $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all]' --group dev --group docs
	touch $@

node_modules/.installed: package.json package-lock.json
	npm ci --no-audit --no-fund --silent
	touch $@

# Everything but torch has the pinned version.
$(NEWEST)/.installed: pyproject.toml constraints.txt $(NATIVE)
	$(PYTHON) -m venv $(NEWEST)
	sed '/^torch==/d' constraints.txt > $(NEWEST)/constraints.txt
	$(NEWEST)/bin/python -m pip install --quiet --upgrade pip
	$(NEWEST)/bin/python -m pip install --quiet --upgrade --constraint $(NEWEST)/constraints.txt --editable '.[all]' --group dev
	touch $@

$(BENCH)/.installed: pyproject.toml constraints.txt benchmarks/requirements.txt $(NATIVE)
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	$(BENCH)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[all]' --requirement benchmarks/requirements.txt
	touch $@

clean:
	rm -rf $(VENV) $(BENCH) $(NEWEST) node_modules .pytest_cache .mypy_cache .ruff_cache .import_linter_cache docs/_build docs/_made
