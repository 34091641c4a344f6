# Everything but test-upstream runs in .venv, which the set-up makes; PYTHON=/path/to/python3.11 chooses its Python.
# AREA=rpe lets every kind of test run those of tests/rpe alone; several are separated by spaces.
SHELL := /bin/sh
PYTHON ?= python3.11 python3
VENV := .venv/bin/python
SETUP = for python in $(PYTHON); do \
	"$$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && exec "$$python" -m tools.setup
# Tests use one thread each, so several run at once, in processes of at most 3 GB.
PYTEST = MPLBACKEND=Agg $(VENV) -m pytest -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder
TESTS = $(or $(addprefix tests/,$(AREA)),tests)

.DEFAULT_GOAL := help
.PHONY: help setup ready demo docs-figures area test test-fast test-all test-upstream lint clean

help:  ## Show this list
	@sed -n 's/^\([a-z0-9-]*\):.*  ## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup:  ## Make .venv with everything in it; does nothing when it is done
	@$(SETUP); done; $(NO_PYTHON)

ready:
	@$(SETUP) --quiet; done; $(NO_PYTHON)

demo: ready  ## Make a data set, train a detector and a segmentor on it, show what they found
	@$(VENV) tools/demo.py

docs-figures: ready  ## Make the pictures of docs/visualization.md from the newest run of the demo
	@$(VENV) tools/docs_figures.py

area:
	@for test in $(TESTS); do [ -e "$$test" ] || { \
		echo "AREA names folders or files below tests, and there is no $$test here." >&2; exit 1; }; done

test: area ready  ## Run the tests; with AREA=rpe, those of tests/rpe alone
	@$(PYTEST) -m 'not exhaustive' $(TESTS)

test-fast: area ready  ## Run the tests without those marked slow, in less than two minutes
	@$(PYTEST) -m 'not slow and not exhaustive' --durations=15 $(TESTS)

test-all: area ready  ## Run all tests, also those that are too slow for every day
	@$(PYTEST) $(TESTS)

test-upstream: VENV := .venv-upstream/bin/python
test-upstream: area  ## Run the tests with upstream's MM packages, in an environment of their own
	@$(SETUP) --quiet --packages upstream; done; $(NO_PYTHON)
	@$(PYTEST) -m 'not exhaustive' $(TESTS)


lint: ready  ## Check the code's style, and the types of the rooms that setup.cfg names
	@$(VENV) -m ruff check .
	@$(VENV) -m mypy

clean:  ## Remove what runs and tests leave behind; .venv, work_dirs and data stay
	@rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	@find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

NO_PYTHON = echo 'Set-up needs Python 3.11, and $(subst $() $(), or ,$(PYTHON)) is not that here: install it, or name it with' \
	'`make setup PYTHON=/path/to/python3.11`.' >&2; exit 1
