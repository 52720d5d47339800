# Everything a newcomer types. `make run` is the first thing to try.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do command -v $$p >/dev/null && $$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
STAMP := .venv/.setup-stamp
# What `make dist` needs is little, and somebody who deploys needs nothing else.
BUILD := build/env/bin
BUILD_STAMP := build/env/.stamp

# What is compiled once is not compiled again by each of a thousand processes, whatever this shell says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup run test test-all slow chaos check bench lint unit page page-check collected e2e system-packages lock audit generated docs screenshots dist wheelhouse clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(STAMP) ## a .venv with everything, locked, and the page built
$(STAMP): requirements/dev.txt pyproject.toml hatch_build.py web/package.json web/package-lock.json
	@test -n "$(PYTHON)" || { echo "gpudeck needs Python 3.11 or newer with venv (Debian, Ubuntu: apt install python3-venv)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

$(BUILD_STAMP): requirements/build.txt
	@test -n "$(PYTHON)" || { echo "gpudeck needs Python 3.11 or newer with venv (Debian, Ubuntu: apt install python3-venv)"; exit 1; }
	@test -x $(BUILD)/python || $(PYTHON) -m venv build/env
	$(BUILD)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/build.txt
	@touch $(BUILD_STAMP)

page: setup ## build the page again after a change below web/
	$(BIN)/python hatch_build.py

run: page ## set up, then start the hub: prints the page's address
	$(BIN)/gpudeck up $(ARGS)

check: lint unit ## the quick half: linters, types, rooms, Python tests without a browser

# What keeps one core busy goes side by side.
test: system-packages setup ## check, the page's own tests, and the page in a real Chromium
	@$(MAKE) --no-print-directory --jobs 2 --output-sync lint page-check collected
	@$(MAKE) --no-print-directory unit e2e

test-all: test slow ## everything

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

unit: setup
	$(BIN)/pytest -m "not slow" --ignore tests/e2e -n 4 --dist loadfile --no-loadscope-reorder

page-check: page
	$(BIN)/python hatch_build.py check

# Found by one process, compiled tests are there for all that come after it.
collected: setup
	@$(BIN)/pytest --collect-only -qq > /dev/null || true

e2e: setup
	$(BIN)/pytest tests/e2e -m "not slow" -n 3 --dist loadfile --no-loadscope-reorder

slow: setup ## the tests that take long: a month's accounts, a simulated week, crowds, the page behind proxies, in many tabs, large
	$(BIN)/pytest -m slow -n 3 --dist loadfile

chaos: system-packages setup ## what fails around a hub, with exact ground truth: prints a table (15 minutes); ARGS="--scenario kills"
	cd tests && ../$(BIN)/python -m chaos $(ARGS)

system-packages: ## what the tests want from the system: installed when root and apt are there, else named
	@bash tests/system-packages.sh

bench: page ## what is claimed, measured: prints tables with ratios
	$(BIN)/python -m bench

lock: setup ## resolve the dependencies again (hashes, no index address)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --group dev --extra hub pyproject.toml -o requirements/dev.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --extra hub pyproject.toml -o requirements/hub.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  pyproject.toml -o requirements/agent.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --group build -c requirements/dev.txt -o requirements/build.txt

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
	  -r requirements/hub.txt -d dist/wheelhouse
	cp dist/gpudeck-*.whl dist/wheelhouse/

clean: ## forget the environment and everything built
	rm -rf .venv build dist web/node_modules src/gpudeck/api/page
