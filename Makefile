# The commands of this repository; `make help` lists them. `make demo` and `make test` need Python 3.11+ and nothing else.

PYTHON ?=
TORCH ?= torch==2.13.0
WORKERS ?= 2
PYTEST_ARGS ?=

VENV := .venv
PY := $(VENV)/bin/python
# Installed again when pyproject.toml changes, or when the checkout moves: an editable install holds its path.
STAMP := $(VENV)/.installed-$(shell { pwd -P; cat pyproject.toml; } | cksum | cut -d' ' -f1)

.DEFAULT_GOAL := help
.PHONY: help install model demo test check format clean

help: ## list these commands
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' Makefile

install: $(STAMP) ## make .venv and install Palmette into it, editable, with the tools of development

model: $(STAMP) ## fetch the default model into the user's cache, once
	@$(PY) -m palmette models pull >/dev/null

demo: model ## run examples/fork_and_judge.py on the default model
	@$(PY) -m palmette run examples/fork_and_judge.py

# With bytecode: tests start some hundred processes, each of which would compile the package anew.
test: model ## run every test
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)

check: $(STAMP) ## format, lint, types and import contracts
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports --no-logo

format: $(STAMP) ## format the code, and fix what the linter can fix
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

clean: ## remove .venv, caches and build output; the model in the user's cache stays
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A Python that can make a virtual environment, or a message that says what is missing.
define FIND_PYTHON
new_enough='import sys; sys.exit(sys.version_info < (3, 11))'; without_venv=; python=; \
for candidate in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python); do \
    "$$candidate" -c "$$new_enough" 2>/dev/null || continue; \
    if "$$candidate" -c 'import ensurepip, venv' 2>/dev/null; then python=$$candidate; break; fi; \
    without_venv="$$without_venv $$candidate"; \
done; \
if [ -z "$$python" ] && [ -n "$$without_venv" ]; then \
    echo "error:$$without_venv cannot make virtual environments: the modules venv and ensurepip are missing." >&2; \
    echo "hint: on Debian and Ubuntu, apt install python3-venv; or name another Python: make PYTHON=/path/to/python3" >&2; \
    exit 1; \
elif [ -z "$$python" ]; then \
    echo "error: Palmette needs Python 3.11 or newer, and found none in: $(or $(PYTHON),PATH)" >&2; \
    echo "hint: install one, or name it: make PYTHON=/path/to/python3" >&2; \
    exit 1; \
fi
endef

# A .venv of another place is made anew: its programs hold the path of their Python. Without a GPU the pinned torch comes
# first: an open range would fetch a CUDA build of gigabytes.
$(STAMP):
	@if ! $(PY) -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	    || ! grep -qsF "$$(pwd -P)/$(VENV)" $(VENV)/bin/activate; then \
	    $(FIND_PYTHON); \
	    echo "making $(VENV) with $$python ($$($$python -V))"; \
	    "$$python" -m venv --clear $(VENV) || exit 1; \
	fi
	@if ! nvidia-smi -L >/dev/null 2>&1; then \
	    echo "no NVIDIA GPU here: installing $(TORCH), which takes a minute or two"; \
	    $(PY) -m pip install -qq --progress-bar off $(TORCH) || exit 1; \
	fi
	@echo "installing Palmette (editable) and the tools of development"
	@$(PY) -m pip install -qq --progress-bar off --editable '.[dev]'
	@rm -f $(VENV)/.installed-*
	@touch $@
