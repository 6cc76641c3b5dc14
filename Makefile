# Two commands on a fresh machine: `make demo` and `make test`. Both set up .venv themselves.
PYTHON ?= python3
PIP := .venv/bin/python -m pip
STAMP := .venv/.ready

.PHONY: setup demo test clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; assert sys.version_info >= (3, 11), 'apl needs Python 3.11 or newer (PYTHON=python3.12 make setup)'"
	$(PYTHON) -m venv .venv
	$(PIP) install --quiet --constraint constraints.txt torch==2.13.0
	$(PIP) install --quiet --constraint constraints.txt --editable '.[test]'
	touch $(STAMP)

demo: setup
	.venv/bin/apl demo

test: setup
	.venv/bin/lint-imports
	.venv/bin/python -m pytest

clean:
	rm -rf .venv
