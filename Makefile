# `make` alone says what there is.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run test check crash-full lint format types imports unit bench dist lock clean

BIN := .venv/bin
STAMP := .venv/.stamp
PYTEST_ARGS ?= -n 2 --dist loadfile

help: ## Say what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: $(STAMP) ## Run the main job on real files: ingest, drop, truncate, crash, recover, verify
	@$(BIN)/ullage demo

test: lint types imports unit ## Everything CI runs: lint, types, import contracts, tests

check: test ## The same as test

lint: $(STAMP) ## Style and formatting
	@tools/stage lint $(BIN)/ruff check .
	@tools/stage formatting $(BIN)/ruff format --check .

format: $(STAMP) ## Format the code and fix what can be fixed
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

types: $(STAMP) ## Types, strict
	@tools/stage types $(BIN)/mypy

imports: $(STAMP) ## Import contracts: who may import whom
	@tools/stage imports $(BIN)/lint-imports --no-logo

unit: $(STAMP) ## Tests only; PYTEST_ARGS='-k name' chooses
	@tools/stage tests $(BIN)/python -m pytest $(PYTEST_ARGS)

crash-full: $(STAMP) ## Every crash state of every workload, and crashes during recovery: some minutes
	@ULLAGE_CRASH_SAMPLE=1 ULLAGE_CRASH_NESTED=0.2 tools/stage crashes \
		$(BIN)/python -m pytest -n 2 -s --timeout 3600 tests/crash

bench: $(STAMP) ## Measure, and print the ratios of docs/performance.md
	@$(BIN)/python -m bench

dist: $(STAMP) ## Build the wheel and the source archive into dist/
	@$(BIN)/python -m build --no-isolation

lock: ## Pin the newest versions that pyproject.toml allows
	@tools/lock

clean: ## Remove the environment and everything that was built
	@rm -rf .venv dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find agent tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(STAMP): pyproject.toml requirements-dev.lock tools/bootstrap agent/ullage_agent/__init__.py
	@tools/stage environment tools/bootstrap
	@touch $@
