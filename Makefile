# Everything a newcomer needs. `make run` and `make test` set the machine up themselves.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# One more than two cores: tests that start processes wait for them. More would cost more than they
# bring: each worker collects the tests and loads the kernels.
PYTEST_WORKERS ?= 3
PYTEST = $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile
# Many container images set it. Without compiled files each worker rewrites all tests again (8 s),
# and each process that a test starts compiles all of src.
unexport PYTHONDONTWRITEBYTECODE
PURE_TESTS = $(wildcard $(addprefix tests/,model matching placement channels overlay identity))
MINUTES ?= 5
SEEDS ?= 10000
COUNT ?= 300
SEED ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup run tools quick test explore soak cover lint bench figures mutate swarm web docs lock clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

setup: $(STAMP) ## create .venv with locked dependencies; find or install Java for Spark

$(STAMP): requirements.lock pyproject.toml scripts/setup.sh
	@scripts/setup.sh $(VENV)
	@touch $@

run: setup ## run three brokers with a simulated campus, on loopback; builds the map page once
	@[ -e src/roamcast/page/index.html.gz ] || $(BIN)/python scripts/build_page.py || true
	@$(BIN)/roamcast serve --demo --brokers 3

tools: ## what some tests look for beside Python: GDAL, Chromium, nftables, ip (Debian, as root; else they skip)
	@scripts/tools.sh

quick: setup ## in under two minutes: lint and the fast tests (no Spark, no processes, fewer examples)
	@scripts/check.sh $(BIN) $(PYTEST) --hypothesis-profile=quick -m "not spark and not process and not slow and not soak"

test: tools setup ## lint and every test but the long ones; the same examples in every run
	@scripts/check.sh $(BIN) $(PYTEST)

explore: setup ## new random examples and seeds for MINUTES (5), until something fails
	@$(BIN)/python scripts/explore.py --minutes $(MINUTES) --workers $(PYTEST_WORKERS)

soak: tools setup ## the long tests, all examples, then SEEDS (10000) seeds of random faults
	@$(PYTEST) --hypothesis-profile=soak -m "soak or hypothesis"
	@$(BIN)/roamcast swarm --seeds $(SEEDS)

cover: setup ## branch coverage of the pure packages by their own tests
	@$(PYTEST) $(PURE_TESTS) -m "not soak and not no_cover" --cov --cov-report=term

lint: setup ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: setup ## run every bench beside its peer (quick sizes)
	@for name in $$($(BIN)/roamcast bench list --names); do $(BIN)/roamcast bench run $$name --quick || exit 1; done

figures: setup ## reproduce the papers' figures into build/figures, with a page of all; QUICK=1: smaller, in minutes
	@for name in $$($(BIN)/roamcast figure list --names); do $(BIN)/roamcast figure run $$name --out build/figures $(if $(QUICK),--quick) || exit 1; done
	@$(BIN)/roamcast figure gallery build/figures

mutate: setup ## COUNT (300) small random defects by SEED (1), each against the tests that reach it
	@$(BIN)/python scripts/mutate.py --count $(COUNT) --seed $(SEED) --workers $(PYTEST_WORKERS)

swarm: setup ## a thousand seeds of random faults in virtual time
	@$(BIN)/roamcast swarm --seeds 1000

web: setup ## check, test and build the map page into src/roamcast/page, at most 520 KB gzip
	@$(BIN)/python scripts/build_page.py --check

docs: setup ## regenerate the generated pages of docs/
	@$(BIN)/python scripts/docs.py

lock: setup ## resolve the dependencies again and write requirements.lock
	@scripts/lock.sh $(VENV)

clean: ## remove the virtual environment and everything built
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
