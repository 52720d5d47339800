# Everything a newcomer types. `make run` is the first thing to try.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do command -v $$p >/dev/null && $$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
STAMP := .venv/.setup-stamp
# What `make dist` needs is little, and somebody who deploys needs nothing else.
BUILD := build/env/bin
BUILD_STAMP := build/env/.stamp
RUN_STAMP := .venv/.run-stamp
PAGE_SOURCES := $(shell find web -type f -not -path '*/node_modules/*' -not -path 'web/dist/*')
# litestar asks for them, for what the hub does not use: made-up examples, htmx, a command line. 30 MB.
UNUSED := faker|polyfactory|litestar-htmx|rich-click|colorama
NO_PYTHON = { echo "gpudeck needs Python 3.11 or newer with venv (Debian, Ubuntu: apt install python3-venv)"; exit 1; }

# What is compiled once is not compiled again by each of a thousand processes, whatever this shell says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup run test test-all slow chaos check bench lint unit base page page-check page-test collected e2e system-packages lock audit generated docs screenshots dist wheelhouse deb clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(STAMP) ## a .venv with everything that development needs, locked, and the page built
$(STAMP): requirements/dev.txt pyproject.toml hatch_build.py web/package.json web/package-lock.json
	@test -n "$(PYTHON)" || $(NO_PYTHON)
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@# uv takes a tenth of pip's CPU time. It does not know pip's settings: where it finds no packages, pip may.
	$(PIP) --require-hashes -r <(awk '/^[^ ]/ { wanted = /^uv==/ } wanted' requirements/dev.txt)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt \
	  || $(PIP) --require-hashes -r requirements/dev.txt
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $(STAMP)

$(BUILD_STAMP): requirements/build.txt
	@test -n "$(PYTHON)" || $(NO_PYTHON)
	@test -x $(BUILD)/python || $(PYTHON) -m venv build/env
	@$(BUILD)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r <(awk '/^[^ ]/ { wanted = /^uv==/ } wanted' requirements/build.txt)
	@$(BUILD)/uv pip install --quiet --no-cache --python $(BUILD)/python --require-hashes -r requirements/build.txt \
	  || $(BUILD)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/build.txt
	@touch $(BUILD_STAMP)

page: setup ## build the page again after a change below web/
	$(BIN)/python hatch_build.py

# Where `make setup` was run, with that. Else with what a hub needs and no more: the tools that build the page, which are
# larger than the hub, are removed again.
run: ## set up what running needs, then start the hub: prints the page's address
	@if [ -e $(STAMP) ]; then $(MAKE) --no-print-directory page; else $(MAKE) --no-print-directory --silent $(RUN_STAMP); fi
	@$(BIN)/gpudeck up $(ARGS)

$(RUN_STAMP): requirements/hub.txt requirements/build.txt pyproject.toml hatch_build.py $(PAGE_SOURCES)
	@test -n "$(PYTHON)" || $(NO_PYTHON)
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Setting up the hub and building its page: about a minute, once."
	@$(MAKE) --no-print-directory $(BUILD_STAMP)
	@awk '/^[^ ]/ { wanted = !/^($(UNUSED))==/ } wanted' requirements/hub.txt > build/run.txt
	@$(BUILD)/uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes -r build/run.txt \
	  || $(PIP) --no-deps --require-hashes -r build/run.txt
	@rm -rf build/editable && $(BUILD)/hatchling build -t wheel:editable -d "$(CURDIR)/build/editable" > /dev/null
	@$(PIP) --no-deps --no-index --force-reinstall build/editable/gpudeck-*.whl
	@rm -rf build web/node_modules web/dist
	@touch $(RUN_STAMP)

check: lint unit ## the quick half: linters, types, rooms, Python tests without a browser

# What keeps one core busy, and what waits for other processes, goes side by side.
test: ## check, the page's own tests, and the page in a real Chromium
	@$(MAKE) --no-print-directory --jobs 2 --output-sync system-packages setup
	@$(MAKE) --no-print-directory --jobs 2 --output-sync lint page-check collected base
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=line unit e2e

test-all: test slow ## everything

# The base install: agent and command line, on Python 3.10 as well.
BASE := $(addprefix src/gpudeck/,agent child_process.py cli client collectors config http_client.py hub_lookup.py local.py model \
  queueing/local_queue.py settings.py tui views wire.py) $(filter-out src/gpudeck/agent/% src/gpudeck/model/%,$(wildcard src/gpudeck/*/settings.py))
lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/vermin --quiet --target=3.10- --no-tips --violations $(BASE)
	$(BIN)/lint-imports --no-cache

unit: setup
	$(BIN)/pytest -m "not slow" --ignore tests/e2e -n 4 --dist loadfile --no-loadscope-reorder

# The tests of the base install that need no hub, with its wheel, on the oldest Python that it supports.
PYTHON310 ?= $(shell for p in python3.10 $(HOME)/.pyenv/versions/3.10.*/bin/python; do $$p -c 'import sys, venv; sys.exit(sys.version_info[:2] != (3, 10))' 2>/dev/null && echo $$p && break; done)
BASE_TESTS := $(addprefix tests/,agent collectors config model wire test_child_process.py)
NEED_HUB := $(addprefix --ignore=tests/,agent/test_several_hubs.py agent/test_signals.py agent/test_tls.py \
  collectors/test_nvml_sleep.py model/test_gpu_request.py model/test_moments.py wire/test_versions.py)
# Arithmetic of the simulated fleet and what a shell script prints: the same on every Python, so once is enough.
SAME_ON_ALL := $(addprefix --ignore=tests/collectors/,$(addprefix simulated/test_,evidence.py jobs.py mishaps.py mix.py \
  physics.py values.py) test_nvidia_smi_shell.py)
base: setup ## the tests of agent and command line on Python 3.10, where there is one
ifeq ($(PYTHON310),)
	@echo "The tests on Python 3.10 are skipped: there is no python3.10 with venv on the PATH or in ~/.pyenv/versions"
else
	@rm -rf build/python3.10 && $(PYTHON310) -m venv --without-pip build/python3.10 && mkdir -p build
	@$(BIN)/uv pip install --quiet --python build/python3.10/bin/python --require-hashes -r requirements/base-tests.txt
	@$(BIN)/hatchling build -t wheel -d "$(CURDIR)/build/base" > /dev/null
	@$(BIN)/uv pip install --quiet --python build/python3.10/bin/python --no-deps build/base/gpudeck-*.whl
	build/python3.10/bin/python -m pytest -p no:cacheprovider -m "not slow" -n 3 $(BASE_TESTS) $(NEED_HUB) $(SAME_ON_ALL)
endif

page-check: page
	$(BIN)/python hatch_build.py check

page-test: setup ## the page's unit tests; ARGS="src/gpu/gpuPage.test.ts" runs those of one file
	$(BIN)/python hatch_build.py test $(ARGS)

# Found by one process, compiled tests are there for all that come after it.
collected: setup
	@$(BIN)/pytest --collect-only -qq > /dev/null || true

e2e: setup
	$(BIN)/pytest tests/e2e -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder

slow: setup ## the tests that take long: a month's accounts, a simulated week, crowds, properties at length, the page behind proxies, in many tabs, large
	$(BIN)/pytest -m "slow or hypothesis" --ignore tests/e2e --hypothesis-profile long -n 3 --dist loadfile
	$(BIN)/pytest tests/e2e -m slow -n 3 --dist loadfile

chaos: system-packages setup ## what fails around a hub, with exact ground truth: prints a table (15 minutes); ARGS="--scenario kills"
	cd tests && ../$(BIN)/python -m chaos $(ARGS)

system-packages: ## what the tests want from the system: installed when root and apt are there, else named
	@bash tests/system-packages.sh

bench: page ## what is claimed, measured: prints tables with ratios
	$(BIN)/python -m bench

LOCK := $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header
lock: setup ## resolve the dependencies again (hashes, no index address)
	$(LOCK) --python-version 3.11 --group dev --extra all pyproject.toml -o requirements/dev.txt
	$(LOCK) --python-version 3.11 --extra all pyproject.toml -c requirements/dev.txt -o requirements/all.txt
	$(LOCK) --python-version 3.11 --extra hub pyproject.toml -c requirements/dev.txt -o requirements/hub.txt
	$(LOCK) --python-version 3.10 pyproject.toml -o requirements/agent.txt
	$(LOCK) --python-version 3.10 --group base-tests pyproject.toml -c requirements/agent.txt -o requirements/base-tests.txt
	$(LOCK) --python-version 3.11 --group build -c requirements/dev.txt -o requirements/build.txt

audit: setup ## known weaknesses of what is depended on; says so where a registry does not answer
	$(BIN)/python tests/audit.py

generated: setup ## write again what is made from the code: API types, configuration reference, Prometheus rules, dashboard
	cd tests && ../$(BIN)/python -m generated
	$(BIN)/python hatch_build.py types

docs: setup ## build/site/: the documents as a site; fails on a broken link
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

screenshots: page ## take the pictures of README and docs again (needs chromium)
	cd tests && ../$(BIN)/python -m e2e.screenshots
	cd tests && ../$(BIN)/python -m e2e.top_picture

dist: $(BUILD_STAMP) ## dist/: a source distribution, and the wheel that is made of it, with the page inside
	rm -rf dist/gpudeck-* && mkdir -p dist
	$(BUILD)/hatchling build -t sdist -d "$(CURDIR)/dist"
	work="$$(mktemp -d)" && trap 'rm -rf "$$work"' EXIT && tar -xzf dist/gpudeck-*.tar.gz -C "$$work" \
	  && cd "$$work"/gpudeck-* && "$(CURDIR)/$(BUILD)/hatchling" build -t wheel -d "$(CURDIR)/dist"

wheelhouse: dist ## dist/wheelhouse/: that wheel and all it needs, for machines without a package index
	rm -rf dist/wheelhouse
	$(BUILD)/python -m pip download --quiet --disable-pip-version-check --require-hashes --only-binary :all: \
	  -r requirements/all.txt -d dist/wheelhouse
	cp dist/gpudeck-*.whl dist/wheelhouse/

deb: dist ## dist/*.deb: the agent and the hub as packages for Debian and Ubuntu
	UV="$(CURDIR)/$(BUILD)/uv" UNUSED='$(UNUSED)' bash deploy/debian/build.sh

clean: ## forget the environment and everything built
	rm -rf .venv build dist web/node_modules src/gpudeck/api/page
