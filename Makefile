# make demo   fit the bundled example, print its table, predict, write report.html, effects.svg, summit.csv
# make test   everything that must pass before a change is merged: style, types, layers, tests
# make check-fast     the fast part of the tests, in under a minute: while one works
# make test-rounding  the tests with other kernels of NumPy and OpenBLAS: nothing may hang on one machine's rounding
# make docs   the documentation site into site/, its code executed, warnings as errors: open site/index.html
# make links  links of the documentation that lead outside (the tests check all others)
# make bench  klimb beside whichever rivals are installed, and docs/benchmarks.md from what was measured
# make bench-compare BASE=REV  the seconds of klimb at another commit and here, in turn: exit 1 if a case is slower
# All create the virtual environment they need; a second run finds it ready.

PYTHON ?= python3
VENV ?= .venv
# A file stays on one worker, in its order: modules that draw their data one test after another are the same every time.
PYTEST_ARGS ?= -n 2 --dist loadfile
EXTRAS ?= dev
PIP_ARGS ?=
BIN := $(VENV)/bin
# Small problems: one BLAS thread is the fastest and keeps the numbers the same everywhere.
export OPENBLAS_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Tests start hundreds of interpreters: each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE
# Data sets for tests, benchmarks and reproductions, where they lie beside the repository.
ifneq ($(wildcard ../shared/data),)
export KLIMB_DATA ?= $(abspath ../shared/data)
endif

.PHONY: help demo test lint types layers check check-fast test-rounding docs links bench bench-compare clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt --editable ".[$(EXTRAS)]"
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt --editable ".[docs]"
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-bench: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt --editable ".[bench]"
	@touch $@ $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/klimb demo

test: lint types layers check

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

layers: $(VENV)/.installed-dev
	$(BIN)/lint-imports --no-cache

check: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q $(PYTEST_ARGS)

# Contracts, one optimum by every method, formulas, the command line and all doctests. The whole suite adds the corners of
# each part (the rooms of tests), every block of the documentation, the page for labels, papers and references.
FAST := tests/contracts tests/equivalence tests/formula tests/terms tests/cli src
check-fast: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q $(PYTEST_ARGS) $(FAST)

# Kernels of OpenBLAS for processors without AVX (Prescott), with AVX, AVX2 and AVX-512, and NumPy's loops without AVX-512.
# A processor must have what a kernel uses, or the interpreter dies: SkylakeX only where there is AVX-512.
ROUNDINGS := Prescott Sandybridge Haswell $(if $(shell grep -ow -m 1 avx512f /proc/cpuinfo 2>/dev/null),SkylakeX)
test-rounding: $(VENV)/.installed-dev
	@for kernel in $(ROUNDINGS); do \
	  disabled=; [ $$kernel = SkylakeX ] || disabled="X86_V4 AVX512_ICL"; \
	  echo "OPENBLAS_CORETYPE=$$kernel NPY_DISABLE_CPU_FEATURES=\"$$disabled\""; \
	  env OPENBLAS_CORETYPE=$$kernel $${disabled:+NPY_DISABLE_CPU_FEATURES="$$disabled"} \
	    $(BIN)/python -m pytest -q $(PYTEST_ARGS) || exit 1; \
	done

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --clean

links: $(VENV)/.installed-dev
	$(BIN)/python -m tests.links

# Rivals are looked for in $(VENV) and in the virtual environments in the directory KLIMB_RIVALS; BENCH narrows the cases
# ("--only logistic --most 100000").
bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.bench run $(BENCH)
	$(BIN)/python -m benchmarks.bench page

BASE ?= main
bench-compare: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.bench compare $(BASE) $(BENCH)

clean:
	rm -rf $(VENV) build dist site report.html effects.svg summit.csv .pytest_cache .mypy_cache .ruff_cache .hypothesis
