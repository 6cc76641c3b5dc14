# Two commands on a fresh machine: `make demo` and `make test`. Both set up .venv themselves.
PYTHON ?= python3
PIP := .venv/bin/python -m pip
INSTALL := $(PIP) install --quiet --constraint constraints.txt

EXPERIMENTS := paper-form extended ablations lake imagenet imagenet-plain analogy baselines vinyals peers \
  classifier-speed training-step batch loop service soak storage engine report

# Compiled modules are kept: the tests start many processes, and each would compile the library again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test coverage docs package clean $(EXPERIMENTS)

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; assert sys.version_info >= (3, 11), 'apl needs Python 3.11 or newer: PYTHON=python3.12 make setup'"
	$(PYTHON) -m venv .venv
	$(INSTALL) --editable '.[service]'
	touch $@

# torch by its exact version first: a range would take the registry's newest build and its GPU libraries.
.venv/.ready-test: .venv/.ready
	$(INSTALL) torch==2.13.0
	$(INSTALL) --editable '.[test]'
	touch $@

demo: setup
	.venv/bin/apl demo

# Lines of the library that the tests reach. Slower than `make test`: every line is counted.
coverage: .venv/.ready-test
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest --numprocesses auto --dist loadgroup --no-loadscope-reorder -m "not milvus" --cov apl --cov-report term:skip-covered

# An sdist and a wheel in dist/, their metadata checked as the registry does.
package: .venv/.ready
	$(INSTALL) build twine
	rm -rf dist
	.venv/bin/python -m build --outdir dist
	.venv/bin/twine check --strict dist/*

# The site, in build/site; a broken link or an undocumented name is an error.
docs: .venv/.ready
	$(INSTALL) --editable '.[docs]'
	.venv/bin/mkdocs build --strict

# `make paper-form OPTIONS=--quick`
$(EXPERIMENTS): .venv/.ready-test
	.venv/bin/python -m experiments $@ $(OPTIONS)

# One process per core and one thread per process: torch's threads would wait for each other.
# A Milvus server starves beside the other tests, so those that need one come last and alone.
test: .venv/.ready-test
	.venv/bin/ruff check src tests experiments examples
	.venv/bin/ruff format --check src tests experiments examples
	.venv/bin/lint-imports
	.venv/bin/mypy
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest --numprocesses auto --dist loadgroup --no-loadscope-reorder -m "not milvus"
	OMP_NUM_THREADS=1 .venv/bin/python -m pytest -m milvus tests/test_store_index.py

clean:
	rm -rf .venv
