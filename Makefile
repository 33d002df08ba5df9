# The newcomer's two commands: each sets up its own environment in .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# A C compiler from a Python package where the machine has none.
COMPILER := $(shell command -v $${CC:-cc} >/dev/null || echo 'CC="$$(echo $(CURDIR)/$(VENV)/lib/python3*/site-packages/ziglang/zig) cc"')

.PHONY: demo monitor-demo docs test test-slow test-gpu lint kernels benchmarks benchmarks-long models clean

demo: $(VENV)/kernels
	rm -rf demo
	$(BIN)/heartlm demo --out demo

# A ward of 50 simulated patients, some of whom fibrillate, on a page of this machine until interrupted.
monitor-demo: $(VENV)/kernels
	test -d build/ward || $(BIN)/heartlm data simulate build/ward --patients 50 --minutes 10 --seed 5
	$(BIN)/heartlm monitor --replay build/ward --streams 50 --open

# The documentation as a site: build/site/index.html.
docs: $(VENV)/kernels
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# In parallel, the tests of a file in one process: they share its fixtures. A process that dies ends the whole: with a
# new one in its place pytest-xdist waits for ever.
PARALLEL := -n auto --maxprocesses 4 --dist loadfile --max-worker-restart 0

test: $(VENV)/kernels
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow"

# A real SLURM, whole trainings, ranks that are killed, the mutation campaign.
test-slow: $(VENV)/kernels
	$(BIN)/python -m pytest $(PARALLEL) -m slow

# What needs a GPU, or two; without one each is skipped with its reason. See docs/gpu.md.
test-gpu: $(VENV)/kernels
	$(BIN)/python -m pytest -m gpu -rs -v

lint: $(VENV)/kernels
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Speed tables in about 50 minutes, one quiet machine; ONLY=feeding,training measures these alone, and what is measured
# already is not measured again. The second target takes hours. Both fill the figures of README.md and docs/ in.
benchmarks: $(VENV)/rivals $(VENV)/kernels
	$(BIN)/python benchmarks/runner.py --only "$(ONLY)"
	$(BIN)/python benchmarks/figures.py --write

benchmarks-long: $(VENV)/rivals $(VENV)/kernels
	$(BIN)/python benchmarks/runner.py --long --only "$(ONLY)"
	$(BIN)/python benchmarks/figures.py --write

# The shipped models, trained from the databases in HEARTLM_TEST_DATA in about an hour on two cores; continued where it
# was stopped. See docs/models.md.
MODELS_WORK ?= ../heartlm-models

models: $(VENV)/kernels
	$(BIN)/python benchmarks/models.py --work "$(MODELS_WORK)"
	$(BIN)/python benchmarks/af_onset.py --work "$(MODELS_WORK)/af-onset" \
		--cinc2017 "$(MODELS_WORK)/unpacked/cinc2017" --ltafdb "$(MODELS_WORK)/unpacked/ltafdb"

# An editable installation does not build the kernels again by itself when their sources change.
kernels: $(VENV)/kernels

$(VENV)/kernels: $(VENV)/ready $(wildcard src/heartlm/*/c/*)
	$(COMPILER) $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

# The environment is made again whenever what it holds has changed.
$(VENV)/ready: pyproject.toml constraints.txt CMakeLists.txt
	$(PYTHON) -c 'import sys; sys.exit("heartlm needs Python 3.11 or newer; this is " + sys.version.split()[0] + ": set PYTHON=…" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "torch==2.13.0"
	test -z '$(COMPILER)' || $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt ziglang
	$(COMPILER) $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@ && touch $(VENV)/kernels

$(VENV)/rivals: $(VENV)/ready benchmarks/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement benchmarks/requirements.txt
	touch $@

clean:
	rm -rf $(VENV) build
