# make demo   fit the bundled example, print its table, predict, write report.html, effects.svg, summit.csv
# make test   everything that must pass before a change is merged: style, types, layers, tests
# make docs   the documentation site into site/, its code executed, warnings as errors: open site/index.html
# make links  links of the documentation that lead outside (the tests check all others)
# All create the virtual environment they need; a second run finds it ready.

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?= -n 2
BIN := $(VENV)/bin
# Small problems: one BLAS thread is the fastest and keeps the numbers the same everywhere.
export OPENBLAS_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Data sets for tests, benchmarks and reproductions, where they lie beside the repository.
ifneq ($(wildcard ../shared/data),)
export KLIMB_DATA ?= $(abspath ../shared/data)
endif

.PHONY: help demo test lint types layers check docs links bench clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-bench: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable ".[bench]"
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

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --clean

links: $(VENV)/.installed-dev
	$(BIN)/python -m tests.links

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.engine

clean:
	rm -rf $(VENV) build dist site report.html effects.svg summit.csv .pytest_cache .mypy_cache .ruff_cache .hypothesis
