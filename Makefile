# Everything needs only python3 (3.11 to 3.14, with headers) and g++: the first target run makes .venv.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
TORCH ?= torch==2.13.0
# The build finds ninja on the path.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
WORKERS ?= 2
FUZZ_EXAMPLES ?= 10000

LINTED := $(wildcard kiln tests tools benchmarks examples setup.py)
NATIVE := $(wildcard $(foreach ending,cpp h py,kiln/native/*.$(ending) kiln/native/*/*.$(ending)))
TOOLS := pytest expecttest pytest-xdist pytest-timeout hypothesis numpy transformers ruff mypy "setuptools>=77.0.3" wheel ninja
PEERS := jax matplotlib
# Models are built from configurations: nothing is downloaded.
export HF_HUB_OFFLINE := 1

.PHONY: setup demo test lint check check-fast fuzz asan bench matrix wheel test-wheel sdist coverage-of-seeds natives
.PHONY: docs-index clean

setup: $(VENV)/.built

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	touch $@

# torch goes first and alone, so that pip resolves exactly this build of it.
$(VENV)/.torch: $(VENV)/.created
	$(VENV)/bin/pip install --quiet "$(TORCH)"
	touch $@

$(VENV)/.tools: $(VENV)/.torch
	$(VENV)/bin/pip install --quiet $(TOOLS)
	touch $@

$(VENV)/.built: $(VENV)/.tools setup.py pyproject.toml $(NATIVE)
	$(VENV)/bin/pip install --quiet --no-build-isolation -e .
	touch $@

demo: setup
	$(RUN) -m examples.demo

test: setup lint check

lint: $(VENV)/.tools
	$(VENV)/bin/ruff format --check $(LINTED)
	$(VENV)/bin/ruff check $(LINTED)
	$(VENV)/bin/mypy kiln tools

check: setup
	$(RUN) -m pytest -q -n $(WORKERS) --timeout 300 $(ARGS)

# The inner loop, under 3 minutes on two cores: some tests of every package.
check-fast: setup
	$(RUN) -m pytest -q -n $(WORKERS) --timeout 300 $$(grep -v '^#' tests/fast.txt) $(ARGS)

fuzz: setup
	$(RUN) tests/fuzz/run.py --examples $(FUZZ_EXAMPLES)

# The native module with sanitizers, and the tests of it: ARGS=tests/native for a selection.
asan: setup
	$(RUN) tests/sanitized.py $(ARGS)

# What only benchmarks need: JAX beside the GPT, matplotlib for the chart.
$(VENV)/.bench: $(VENV)/.tools
	$(VENV)/bin/pip install --quiet $(PEERS)
	touch $@

bench: setup $(VENV)/.bench
	$(RUN) benchmarks/speed.py --json docs/speed.json
	$(RUN) benchmarks/capture.py
	$(RUN) benchmarks/aot.py
	$(RUN) benchmarks/engine.py

# The table is rich's; the matrix needs nothing else of .venv.
$(VENV)/.rich: $(VENV)/.created
	$(VENV)/bin/pip install --quiet rich
	touch $@

# Builds and tests pairs of Python and torch (docs/platforms.md): PAIRS="3.12:2.15 3.13:2.15", TESTS=tests/native,
# ARGS="--python PATH --page".
matrix: $(VENV)/.rich
	$(RUN) -m tools.matrix $(if $(PAIRS),--pairs $(PAIRS)) $(if $(TESTS),--tests $(TESTS)) $(ARGS)

# Wheels in dist/ (docs/packaging.md), for the pair of .venv or for PAIRS; test-wheel tries them in clean environments.
wheel: setup
	$(RUN) -m tools.wheels $(if $(PAIRS),--pairs $(PAIRS)) $(ARGS)

test-wheel: setup
	$(RUN) -m tools.wheels --test $(if $(PAIRS),--pairs $(PAIRS)) $(ARGS)

sdist: $(VENV)/.tools
	$(RUN) -m tools.wheels --sdist

# Which behaviours of the seed documents have tests: prints them, and writes docs/seed-coverage.md.
coverage-of-seeds: setup
	$(RUN) tests/seed_coverage.py $(ARGS)

# Which builtins run on shadows while tracing, and what they may do: writes docs/natives.md.
natives: setup
	$(RUN) tests/sweep_natives.py --page

# The index of modules from their docstrings: writes docs/modules.md. Run it after adding, renaming or describing one.
docs-index:
	$(PYTHON) tests/module_index.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f kiln/_native*.so kiln/_native*.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
