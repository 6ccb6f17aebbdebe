# Two commands do all the set-up on a fresh machine: make demo, make test. They need Python 3.10 or 3.11, pip, git, make
# and a C++ compiler; everything else is installed into .venv. Nothing here calls apt or needs root.
PYTHON ?= $(shell command -v python3.11 || command -v python3.10 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=
JOBS ?= 2
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test smoke smoke-upstream test-upstream bench lint install clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; sys.exit(not ((3, 10) <= sys.version_info[:2] <= (3, 11)))' || \
	  { echo "error: $(PYTHON) is not Python 3.10 or 3.11 (megatron-core 0.8.0 has wheels for these only): set PYTHON=" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip 'setuptools<81' wheel
	@echo "installing the packages (torch, transformers, megatron-core ...); this takes some minutes"
	$(BIN)/pip install --quiet --editable '.[all,dev]'
	@touch $@

demo: install
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/demo.py

test: install lint
	rm -f .coverage .coverage.*
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/coverage run -m pytest -n $(JOBS) --dist loadfile $(PYTEST_ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --fail-under=90

lint: install
	$(BIN)/ruff check launcher tests tools setup.py
	$(BIN)/mypy
	$(BIN)/lint-imports

smoke: install
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ms-recipe smoke --upstream stub

smoke-upstream: install
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ms-recipe smoke --upstream pinned

test-upstream: install
	@test -n "$$MS_RECIPE_TREE" || { echo "error: set MS_RECIPE_TREE to an assembled tree (ms-recipe vendor sync)" >&2; exit 2; }
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest tests/upstream $(PYTEST_ARGS)

bench: install
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tests/bench

clean:
	rm -rf $(VENV) build dist .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache
