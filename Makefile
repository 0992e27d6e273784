# Each target creates the virtual environment that it needs, in $(VENV), and again only when pyproject.toml changes.

# The first suitable Python; use PYTHON=/path/to/python3 for another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

# urllib3-future, which niquests brings, would take the place of urllib3, on which the kubernetes package is tested.
INSTALL = URLLIB3_NO_OVERRIDE=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-binary urllib3-future

.PHONY: help demo test suite lint bench format clean

help:
	@echo "make demo  [ARGS='--dir DIR --workers N'] two simulated clusters behind mcproxy"
	@echo "make test  [ARGS='-k name']              lint, then all tests"
	@echo "make suite [PYTHON=P VENV=DIR]           all tests, on another Python in a virtual environment of its own"
	@echo "make lint                                ruff, mypy, import-linter"
	@echo "make bench [ARGS=...]                    measure against nginx, Go and Twisted; writes bench/RESULTS.md"
	@echo "make format                              format the code with ruff"
	@echo "make clean                               remove everything that the other targets created"

demo: $(VENV)/made-for-demo
	@exec $(BIN)/mcproxy demo $(ARGS)

test: lint suite

suite: $(VENV)/made-for-test
	@.ci/tools kubectl chromium redis-server || echo "make $@: going on without; the tests that need it will fail" >&2
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations=15 $(ARGS)

lint: $(VENV)/made-for-test
	$(BIN)/ruff check mcproxy tests bench man
	$(BIN)/ruff format --check mcproxy tests bench man
	$(BIN)/mypy
	$(BIN)/lint-imports --config setup.cfg

bench: $(VENV)/made-for-test
	@.ci/tools nginx wrk h2load redis-server
	$(BIN)/python -m bench $(ARGS)

format: $(VENV)/made-for-test
	$(BIN)/ruff check --fix mcproxy tests bench man
	$(BIN)/ruff format mcproxy tests bench man

clean:
	rm -rf .venv .venv-* .tools .ci/results build dist mcproxy.egg-info .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "mcproxy needs Python 3.11, 3.12 or 3.13: install one, or say make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { echo "$(PYTHON) does not suit: mcproxy needs Python 3.11, 3.12 or 3.13; say another with make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments: install python3-venv (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/made-for-%: pyproject.toml | $(BIN)/python
	$(INSTALL) --editable '.[$*]'
	@touch $@
