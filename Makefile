# Two commands: `make demo` shows local forgetting, `make test` proves the rest.
# Each sets up its own virtual environment from pyproject.toml.
PYTHON ?= python3
LAB := .venv/installed-lab
DEV := .venv/installed-dev
JOBS ?= auto

.PHONY: help demo test test-adapters slow check compat bench bench-peers soak compare clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   the paper's effect on this machine, in some minutes"
	@echo "make test   formatter, linter, type checker, import contract, tests"
	@echo "make test-adapters  the adapters, with the libraries that host them"
	@echo "make slow   the tests that take minutes"
	@echo "make compat the oldest and the newest versions of what the package needs"
	@echo "make bench  speed, each figure against a peer in the same run"
	@echo "make bench-peers   the buffer beside seven peers, in an environment of their own"
	@echo "make soak   1e7 inserts into buffers of every kind, checked by brute force on the way"
	@echo "make compare A=COMMIT B=COMMIT   whether two commits give the same numbers"

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "lofo needs Python 3.11 or later; say which: make demo PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }

$(LAB): pyproject.toml | .venv/bin/python
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[lab]'
	@touch $@

$(DEV): pyproject.toml | .venv/bin/python
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(LAB) $@

demo: $(LAB)
	.venv/bin/lofo demo

# The base is typed for its users.
STRICT := -p lofo_rl.buffers -m lofo_rl -m lofo_rl.types -m lofo_rl.extras \
  -m lofo_rl.testing -m lofo_rl.testing.rules \
  -m lofo_rl.locality -m lofo_rl.locality.base -m lofo_rl.locality.handcrafted

check: $(DEV)
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/mypy --strict --follow-imports=silent --cache-dir=.mypy_cache/base $(STRICT)
	.venv/bin/lint-imports --no-logo

# Tests compile more than they compute: the compiler tries less hard, and what took it long is kept.
TEST_ENV := XLA_FLAGS="--xla_backend_optimization_level=0 $$XLA_FLAGS" \
  JAX_COMPILATION_CACHE_DIR="$(CURDIR)/.pytest_cache/compiled" \
  JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.2

test: check
	$(TEST_ENV) .venv/bin/pytest -n $(JOBS)

# The hosts of the adapters have an environment of their own, in versions that are known to work.
HOSTS := .venv-adapters
$(HOSTS)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(HOSTS)
	$(HOSTS)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[adapters]'
	@touch $@

test-adapters: $(HOSTS)/installed
	JAX_PLATFORMS=cpu $(TEST_ENV) $(HOSTS)/bin/pytest tests/adapters -n $(JOBS)

slow: $(DEV)
	.venv/bin/pytest -m slow

compat:
	$(PYTHON) tests/house/compat.py

bench: $(DEV)
	.venv/bin/python benchmarks/dyna_q.py --runs 1 10 --eager
	.venv/bin/python benchmarks/insert.py
	MUJOCO_GL=egl .venv/bin/python benchmarks/reacher.py

bench-peers: $(DEV)
	.venv/bin/python benchmarks/buffers.py --install

soak: $(DEV)
	.venv/bin/python tools/soak.py --inserts 1e7

compare: $(DEV)
	.venv/bin/python tools/compare_commits.py $(A) $(B)

clean:
	rm -rf .compare_cache .compat .venv .venv-adapters .mypy_cache .ruff_cache .pytest_cache .import_linter_cache \
	  .hypothesis
