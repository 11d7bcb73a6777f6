# `make serve` starts the server, `make test` runs the tests; each makes .venv first if need be.

PYTHON ?= python3
TORCH ?= torch==2.13.0
ARGS ?=
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help serve test check clean

help:
	@echo "make serve   make .venv, install, start the server with the default model (ARGS='--max-sessions 4')"
	@echo "make test    make .venv, install with the developers' tools, run the tests (ARGS='-k session')"
	@echo "make check   lint, types and folder rules"
	@echo "make clean   remove .venv and everything that was built"
	@echo "PYTHON=python3.12 picks the interpreter; TORCH='torch==2.12.1' another torch, unless .venv has one."

serve: .venv/.serve
	@exec $(BIN)/duplex serve $(ARGS)

test: .venv/.test
	$(BIN)/python -m pytest $(ARGS)

check: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

.venv/.torch:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and \
	"Python 3.11 or newer is needed, and $(PYTHON) is %d.%d. Name another: make PYTHON=python3.12 ..." % v[:2])'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { rm -rf .venv; \
	echo "$(PYTHON) cannot make a virtual environment (on Debian: apt install python3-venv)." >&2; exit 1; }
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install '$(TORCH)'
	@touch $@

.venv/.serve: .venv/.torch pyproject.toml
	$(BIN)/python -m pip install --quiet -e .
	@touch $@

.venv/.test: .venv/.torch pyproject.toml tests/peers/requirements.txt tests/peers/package.json
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps -r tests/peers/requirements.txt
	@! command -v npm >/dev/null || npm install --silent --no-package-lock --prefix tests/peers
	@touch $@ .venv/.serve
