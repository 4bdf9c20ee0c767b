# `make demo` and `make test` need Python 3.11 or newer, make and a package registry, and nothing
# else: the first of them makes an environment in .venv and installs untrace into it, which takes
# a minute or two; after that they start at once.
#
#   make test PYTHON=python3.12                      another Python, in an environment of its own
#   make test PYTHON=python3.12 JAX='jax>=0.12,<0.13'    and another line of JAX
#   make test ARGS='-k typestrings'                  anything that pytest takes
#   make test WITH='.[gallery]'                      with more installed: tests that need it are skipped else
#   make demo ARGS=--full                            anything that `untrace demo` takes

.DEFAULT_GOAL := help
.PHONY: help demo test lint clean
.DELETE_ON_ERROR:

is_new_enough := import sys; sys.exit(sys.version_info < (3, 11))

ifdef PYTHON
  version := $(shell '$(PYTHON)' -c 'import sys; print("%d%d" % sys.version_info[:2])' 2>/dev/null)
  ifeq ($(version),)
    $(error PYTHON=$(PYTHON) is no Python that runs here)
  endif
  VENV ?= .venv$(version)
else
  PYTHON := $(shell for python in python3 python python3.13 python3.12 python3.11; do \
      "$$python" -c '$(is_new_enough)' 2>/dev/null && echo "$$python" && break; done)
  VENV ?= .venv
endif

JAX ?= jax
WITH ?=
WORKERS ?= 2
ARGS ?=

# The tests are about programs, not about devices; every result on the CPU can be compared by bits.
export JAX_PLATFORMS ?= cpu

# Installed again when pyproject.toml changes or another JAX is asked for. The package itself is
# installed in place, so that its source can change without that.
installed := $(VENV)/.installed-$(shell printf '%s' '$(JAX) $(WITH)' | cksum | cut -d ' ' -f 1)

help:
	@echo 'make demo    decompile the gradient of a small GPT, and prove and time the result'
	@echo 'make test    run the tests'
	@echo 'make lint    check the style of the source, its types and its imports'
	@echo 'make clean   remove the environments and what the demo wrote'

demo: $(installed)
	@$(VENV)/bin/untrace demo $(ARGS)

test: $(installed)
	@$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

lint: $(installed)
	@$(VENV)/bin/python -m pip install --quiet --editable '.[dev]'
	@$(VENV)/bin/ruff check
	@$(VENV)/bin/pyrefly check --python-interpreter-path $(VENV)/bin/python --summary=none
	@$(VENV)/bin/lint-imports --no-cache --no-logo
	@$(VENV)/bin/python bench/house.py

clean:
	rm -rf .venv .venv[0-9]* demo_out

$(installed): pyproject.toml
	@test -n '$(PYTHON)' || { echo 'untrace needs Python 3.11 or newer, and neither python3 nor' \
	    'python is one; name one: make PYTHON=/path/to/python3' >&2; exit 1; }
	@'$(PYTHON)' -c '$(is_new_enough)' || { \
	    echo 'untrace needs Python 3.11 or newer, and $(PYTHON) is not one' >&2; exit 1; }
	@echo 'Installing untrace and its dependencies into $(VENV) (only this first time) ...' >&2
	@'$(PYTHON)' -m venv '$(VENV)' || { echo '$(PYTHON) cannot make a virtual environment;' \
	    'on Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }
	@'$(VENV)/bin/python' -m pip install --quiet --editable '.[test]' '$(JAX)' $(WITH)
	@rm -f '$(VENV)'/.installed-*
	@touch '$@'
