# The interface of the project; `make help` lists it. Each target installs what it needs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
STAMP := $(VENV)/.installed
PYTHON ?= python3
BIN := $(VENV)/bin
ARGS ?=
NAME ?=

NATIVE := CMakeLists.txt $(shell find cmake core exporters nccl_plugin verbs_interposer clocksync -name CMakeLists.txt -o -name '*.cmake' -o -name '*.cc' -o -name '*.h' -o -name '*.c')

.PHONY: help build demo test test-slow test-all test-again quickcheck lint format rules docs pictures bench captures wheel wheel-test clean

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml scripts/bootstrap.sh scripts/venv.sh $(NATIVE)
	PYTHON=$(PYTHON) VENV=$(VENV) scripts/bootstrap.sh
	@touch $(STAMP)

build: $(STAMP) ## Install system packages (as root), the virtual environment and the native parts

demo: $(STAMP) ## Play a NIC fault on a fleet of network namespaces; options in ARGS="--headless --json FILE"
	$(BIN)/fabricpulse demo $(ARGS)

# What tests/rdma need; they are skipped without.
RDMA = scripts/system_packages.sh rdma && $(BIN)/fabricpulse lab rdma-kernel >/dev/null || true
# On more processes than cores: half of what tests do is wait (tests/README.md). What shares a fixture of its
# module stays together; in which order they begin: tests/fixtures/suite/run_order.py.
PYTEST := $(BIN)/python -Im pytest -n auto --dist loadscope --no-loadscope-reorder

test: $(STAMP) ## Run the tests but the slow ones, minutes; ARGS="-k flap" goes to pytest
	@scripts/system_packages.sh test
	@$(RDMA)
	$(PYTEST) -m "not slow" $(ARGS)

test-slow: $(STAMP) ## Run the slow tests: chaos, soak, many seeds
	@scripts/system_packages.sh test
	$(PYTEST) -m slow $(ARGS)

test-all: $(STAMP) ## Run all tests at once, as .ci/run does
	@scripts/system_packages.sh test
	@$(RDMA)
	$(PYTEST) $(ARGS)

test-again: $(STAMP) ## Run the tests that failed last, one at a time
	$(BIN)/python -Im pytest --last-failed --last-failed-no-failures none $(ARGS)

# Each process imports and collects all of it: one more than cores, for when one waits.
QUICK := $(shell cores=$$(nproc); echo $$((cores < 16 ? cores + 1 : 16)))

quickcheck: $(STAMP) ## Check style, run the unit tests and one lab: the inner loop
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(PYTEST) -n $(QUICK) -m "not slow and not build and not prometheus and not simulation and not thorough" \
		tests/integration/lab/test_network.py tests/unit $(ARGS)

captures: $(STAMP) ## Test by trees and logs of real machines that others publish; says which it lacks
	$(BIN)/python -m tests.peers.captures $(ARGS)

wheel: $(STAMP) ## Build the wheels of fabricpulse and fabricpulse-lab into dist/
	VENV=$(VENV) scripts/wheel.sh

wheel-test: $(STAMP) ## Test the wheel in an empty environment, without the sources (part of test-slow)
	VENV=$(VENV) scripts/wheel_test.sh

lint: $(STAMP) ## Check style, types, formatting, generated files
	@scripts/system_packages.sh lint
	VENV=$(VENV) scripts/lint.sh

format: $(STAMP) ## Format Python, C++ and jsonnet
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only .
	git ls-files '*.cc' '*.h' | xargs -r clang-format -i
	git ls-files 'mixins/*sonnet' | xargs -r jsonnetfmt -i

rules: $(STAMP) ## Render rules/ from mixins/
	$(BIN)/fabricpulse rules render --output-dir rules
	$(BIN)/fabricpulse rules render --format perses --output-dir rules

docs: $(STAMP) ## Render docs/metrics.md, docs/configuration.md, docs/checks, docs/causes
	$(BIN)/python -m fabricpulse.core.reference docs
	$(BIN)/python -m fabricpulse.audit.reference docs/checks
	$(BIN)/python -m fabricpulse.why.pages docs/causes

pictures: $(STAMP) ## Draw the dashboards by the Grafana at GRAFANA_URL, with the data of PROMETHEUS_URL
	$(BIN)/python -m tests.pictures.dashboards $(ARGS)

bench: $(STAMP) ## Run a benchmark, NAME=mesh; one JSON object a line
	@test -n "$(NAME)" || { echo "make bench: say which, NAME=one of:" $$(cd tests/bench && ls -d */__main__.py *.py | sed 's,/.*,,; s/\.py//' | grep -v '^rows$$'); exit 2; }
	@scripts/system_packages.sh bench
	@$(BIN)/python -m tests.bench.$(NAME) $(ARGS)

clean: ## Remove what the targets have made
	rm -rf $(VENV) build dist .tools .mypy_cache .pytest_cache .ruff_cache
