# `make` lists the targets. The only tools needed to start are make and Python 3.11 or newer.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:

VENV := .venv
BIN := $(VENV)/bin
BASE_STAMP := $(VENV)/.stamp-base
DEV_STAMP := $(VENV)/.stamp-dev
INPUTS := pyproject.toml src/jobqueue/_version.py
BASE_PINS := pins/build.txt pins/run.txt
DEV_PINS := pins/dev.txt
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input
# Wheels only: the tools that build a package from its source would come without hashes. On a
# platform that lacks a wheel: make WHEELS= setup
WHEELS ?= --only-binary :all:

# A virtual environment that is half-finished, was moved here from another folder, or has lost its
# interpreter is not used: without its stamps it is built anew.
ifeq ($(shell test -x $(BIN)/python && grep -qsF '$(CURDIR)/$(VENV)/' $(BIN)/pip && echo ok),)
$(shell rm -f $(BASE_STAMP) $(DEV_STAMP))
endif

# Tests and programs start hundreds of interpreters: each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

# Extra arguments: make run ARGS="--log-level debug", make test ARGS="-k retry"
ARGS ?=
# More than there are cores: many tests wait for programs that they have started. Each process collects
# all tests, which takes 4 s. A compose file starts many at once.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
TEST_JOBS ?= $(shell expr $(CORES) \* 2)
CONTAINER_JOBS ?= 3
# Needs no server, and starts few programs: starting them is what most tests of these folders do.
FAST := not integration and not e2e and not slow and not faults and not nightly and not bench and not containers
FAST_WITHOUT := $(addprefix --ignore tests/,cli containers journeys services)
CHECKED := src/jobqueue $(wildcard conftest.py tests scripts/compose_secrets.py scripts/images.py scripts/pins.py \
	scripts/ready.py scripts/requirements.py scripts/sbom.py deploy/docker examples)

define make_venv
	@set -e; \
	if ! { test -x $(BIN)/python && grep -qsF '$(CURDIR)/$(VENV)/' $(BIN)/pip; }; then \
		new='import sys; sys.exit(sys.version_info < (3, 11))'; \
		for candidate in $${PYTHON:-} python3.11 python3 python3.12 python3.13; do \
			if "$$candidate" -c "$$new" >/dev/null 2>&1; then python=$$candidate; break; fi; \
		done; \
		if [ -z "$${python:-}" ]; then \
			echo "jobqueue needs Python 3.11 or newer: none was found as python3.11 or python3." >&2; \
			echo "Install one, or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; \
			exit 1; \
		fi; \
		echo "Creating $(VENV) with $$($$python --version)"; \
		rm -rf $(VENV); \
		"$$python" -m venv $(VENV) || { rm -rf $(VENV); \
			echo "$$python cannot make a virtual environment (on Debian: install python3-venv)." >&2; \
			exit 1; }; \
	fi
endef

# First the packages whose hashes are known, then our own source, which has none: pip takes no
# editable install together with hashes.
define install
	@$(PIP_INSTALL) --require-hashes $(WHEELS) $(addprefix -r ,$(1)) || { \
		echo "A package could not be installed. If it has no wheel for this platform, build it from" >&2; \
		echo "its source: make WHEELS= $(MAKECMDGOALS)" >&2; \
		exit 1; }
	@$(PIP_INSTALL) --no-deps --no-build-isolation -e .
endef

$(BASE_STAMP): $(INPUTS) $(BASE_PINS)
	$(make_venv)
	@echo "Installing jobqueue"
	$(call install,$(BASE_PINS))
	@touch $@

$(DEV_STAMP): $(INPUTS) $(DEV_PINS)
	$(make_venv)
	@echo "Installing jobqueue with the development tools"
	$(call install,$(DEV_PINS))
	@touch $(BASE_STAMP) $@

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(DEV_STAMP) ## Make .venv with everything: package, extras, development tools

.PHONY: run
run: $(BASE_STAMP) ## Start jq-server (settings: JQ_ environment, ARGS="...")
	@exec $(BIN)/jq-server $(ARGS)

.PHONY: demo
demo: $(BASE_STAMP) ## Show the queue at work in the terminal
	@exec $(BIN)/python -m jobqueue.cli.demo $(ARGS)

.PHONY: bench
bench: $(DEV_STAMP) ## Measure one process, and a server on the same store (ARGS=--help)
	@exec $(BIN)/jq-bench run embedded $(ARGS)

.PHONY: bench-taskqueue
bench-taskqueue: $(DEV_STAMP) ## Measure six services against six nodes, at most 10 minutes (ARGS=--help)
	@exec $(BIN)/jq-bench run parity $(ARGS)

.PHONY: bench-containers
bench-containers: $(DEV_STAMP) ## The same in containers, from the compose files (ARGS=--help)
	@$(BIN)/python scripts/services ensure --or-skip kafka containers
	@exec $(BIN)/python -m tests.containers.with_engine $(BIN)/jq-bench run parity --place containers $(ARGS)

# All that docs/evaluation.md has tables of. What is kept is replaced when all of it was measured; a
# measurement that was cut short goes on with what is missing in build/evaluation.
MEASURED := build/evaluation
define measure_once
	@test -e $(MEASURED)/$(1)/$(2) || { rm -rf $(MEASURED)/$(1); $(3) --out $(MEASURED)/$(1) $(4); }
endef

.PHONY: evaluation
evaluation: services ## Measure anew what docs/evaluation.md tells, half an hour on a quiet machine
	@$(BIN)/python scripts/services ensure --or-skip kafka containers
	$(call measure_once,parity,report.html,$(BIN)/jq-bench run parity,$(ARGS))
	$(call measure_once,parity-containers,report.html,$(BIN)/python -m tests.containers.with_engine \
		$(BIN)/jq-bench run parity --place containers,$(ARGS))
	$(call measure_once,choosing,report.html,$(BIN)/jq-bench run choosing,$(ARGS))
	$(call measure_once,outages,outages.json,$(BIN)/jq-bench outages,)
	@for made in $(MEASURED)/*; do \
		rm -rf "results/$${made##*/}" && mv "$$made" results/ || exit 1; \
	done
	$(BIN)/jq-bench tables docs/evaluation.md

.PHONY: check-regress
check-regress: $(DEV_STAMP) ## See that jq-bench regress catches a slowed build and leaves an equal one (an hour; ARGS=--help)
	@exec $(BIN)/python -m tests.bench.check_regress $(ARGS)

.PHONY: bench-replicated
bench-replicated: services ## Measure servers and workers on a private PostgreSQL and Redis (ARGS=--help)
	@exec $(BIN)/jq-bench run replicated $(ARGS)

.PHONY: bench-recovery
bench-recovery: services ## Measure recovery from killed, slow and silent servers (ARGS=--help)
	@exec $(BIN)/jq-bench run recovery $(ARGS)

.PHONY: bench-streaming
bench-streaming: services ## Measure the event stream on a private PostgreSQL and Kafka (ARGS=--help)
	@exec $(BIN)/jq-bench run streaming $(ARGS)

.PHONY: screenshots
screenshots: $(DEV_STAMP) ## Make the pictures of the console in docs/pictures (needs Chromium)
	@exec $(BIN)/python -m tests.console.screenshots

.PHONY: images
images: $(DEV_STAMP) ## Build the container images; say where each MB goes (ARGS=--help)
	@exec $(BIN)/python scripts/images.py $(ARGS)

# PostgreSQL, Redis, Kafka, Prometheus and Chromium: tests start their own, if the programs are there. Where
# they are missing and cannot be had, those tests are skipped; JQ_TEST_REQUIRE (as in .ci/run) forbids
# that. Kafka is that of KAFKA_HOME, else fetched once with Maven (scripts/kafka/pom.xml).
.PHONY: services
services: $(DEV_STAMP) ## Find PostgreSQL, Redis, Kafka, Prometheus and Chromium; get them where that is possible
	@$(BIN)/python scripts/services ensure --or-skip

.PHONY: test
test: services ## Run the tests (COVERAGE=1: count the lines of core, engine, stores and config)
	$(if $(COVERAGE),,@rm -f .coverage)
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal $(if $(COVERAGE),--cov --cov-report=term:skip-covered) $(ARGS)

.PHONY: test-fast
test-fast: $(DEV_STAMP) ## Run the tests that need no server and start few programs, 2 minutes
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal -m "$(FAST)" $(FAST_WITHOUT) $(ARGS)

# Not a step of .ci/run: each says in its marker why it is here. Those of Hypothesis run in `make test`
# as well, with a tenth of the examples.
.PHONY: test-nightly
test-nightly: services ## Run the tests that are too slow for every merge
	JQ_TEST_EXAMPLES=10 $(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile \
		-m "(nightly or hypothesis) and not containers" --durations=10 $(ARGS)

.PHONY: test-integration
test-integration: services ## Run the tests that need a real PostgreSQL, Redis or Kafka
	$(BIN)/python -m pytest -n $(TEST_JOBS) -m "integration and not bench and not nightly" $(ARGS)

.PHONY: test-e2e
test-e2e: services ## Run the tests that go through jq-ctl and the real programs
	$(BIN)/python -m pytest -n $(TEST_JOBS) -m "e2e and not bench and not nightly" $(ARGS)

.PHONY: test-bounds
test-bounds: services ## Check the bounds on speed that the requirements name
	$(BIN)/python -m pytest -m bench tests/bench $(ARGS)

# A compose file belongs to one process: it brings a whole system up. The engine is private, and takes root.
.PHONY: test-containers
test-containers: $(DEV_STAMP) ## Build the images, and run every compose file in real containers
	@$(BIN)/python scripts/services ensure --or-skip kafka containers
	$(BIN)/python -m pytest -n $(CONTAINER_JOBS) --dist loadfile -m containers tests/containers --durations=10 $(ARGS)

# jq:NFR-021, for each part on its own.
.PHONY: coverage
coverage: $(DEV_STAMP) ## Fail if the last `make test COVERAGE=1` covered less than 80 % of a part
	@test -f .coverage || { echo "Run first: make test COVERAGE=1" >&2; exit 1; }
	@for part in 'core/*' 'engine/*' 'stores/*' config.py; do \
		echo "src/jobqueue/$$part"; \
		$(BIN)/coverage report --skip-covered --fail-under=80 \
			--include="src/jobqueue/$$part" || exit 1; \
	done

.PHONY: lint
lint: $(DEV_STAMP) ## Check style, import directions and protos
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/buf lint proto

.PHONY: typecheck
typecheck: $(DEV_STAMP) ## Check types
	$(BIN)/mypy $(CHECKED)

.PHONY: fmt
fmt: $(DEV_STAMP) ## Format the code and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: proto
proto: $(DEV_STAMP) ## Generate the Python code of the protos
	scripts/proto

.PHONY: requirements
requirements: $(DEV_STAMP) ## Show which test shows which requirement (STRICT=1: fail while one is open)
	@STRICT=$(STRICT) $(BIN)/python scripts/requirements.py $(ARGS)

# Not from the stamp: the pins may be what has to be mended.
.PHONY: pins
pins: ## Renew pins/*.txt, the hashes of all that is installed (ARGS=--upgrade: newest versions)
	@test -x $(BIN)/uv || $(MAKE) setup
	@$(BIN)/python scripts/pins.py $(ARGS)

.PHONY: audit
audit: $(DEV_STAMP) ## Look for known vulnerabilities in the pinned packages
	@$(BIN)/pip-audit --disable-pip $(addprefix -r ,$(BASE_PINS) $(DEV_PINS) pins/extras.txt)

.PHONY: sbom
sbom: $(DEV_STAMP) ## Write dist/*.cdx.json, which lists the packages that jobqueue needs
	@$(BIN)/python scripts/sbom.py $(ARGS)

.PHONY: ci
ci: ## Run all that has to pass before a merge
	.ci/run

.PHONY: clean
clean: ## Remove what make and the tools made, .venv too
	rm -rf $(VENV) build dist htmlcov .coverage .coverage.* .requirements.json
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
