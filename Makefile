# `make` alone says what there is.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help generate run test check proof-full crash-full kill-full stress-full calls-full spark-full validity-full crash-mutants crash-tries rot-full goal-full forecast-full nifi-full fuzz-full lint format types imports unit bench bench-peers bench-check bench-scale soak programs cluster cluster-down cluster-full e2e scenario-full dist release release-check push lock clean

BIN := .venv/bin
STAMP := .venv/.stamp
RUN_STAMP := .venv/.stamp-run
PYTEST_ARGS ?= -n 3 --dist loadfile --durations 40 --durations-min 10
CRASH_SEEDS ?= 20261121 7
SEED ?= 20261121
BASE ?= HEAD~1
MINUTES ?= 40

help: ## Say what there is
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: $(RUN_STAMP) ## Run the main job on real files, then serve them: until Ctrl-C on a terminal, else for a moment
	@$(BIN)/ullage demo --serve

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

unit: programs ## Tests only; PYTEST_ARGS='-k name' chooses
	@tools/stage tests $(BIN)/python -m pytest $(PYTEST_ARGS)

programs: $(STAMP) ## Build the clusters' programs and images that the tests need, unless the cache has them
	@tools/stage "programs of clusters" $(BIN)/python -m tests.cluster build

cluster: $(STAMP) ## A Kubernetes with two real nodes and the agent's image, and a shell in which kubectl and helm work; needs root
	@$(BIN)/python -m tests.cluster up
	@$(BIN)/python -m tests.cluster shell

cluster-down: $(STAMP) ## Take that cluster down
	@$(BIN)/python -m tests.cluster down

cluster-full: $(STAMP) ## All tests of clusters, those of Spark, the kubeflow operator and the installed chart included
	@ULLAGE_CLUSTER_FULL=1 tools/stage "programs of clusters" $(BIN)/python -m tests.cluster build
	@ULLAGE_CLUSTER_FULL=1 tools/stage clusters $(BIN)/python -m pytest tests/cluster

e2e: $(STAMP) ## The story on two real nodes: install, write, give back, kill, upgrade, remove, come back, faults, Spark; and releases from a registry, upgraded from BASE; needs root
	@ULLAGE_CLUSTER_FULL=1 tools/stage "programs of clusters" $(BIN)/python -m tests.cluster build
	@ULLAGE_CLUSTER_FULL=1 ULLAGE_BASE=$(BASE) tools/stage "the story" $(BIN)/python -m pytest tests/e2e

scenario-full: $(STAMP) ## A GiB through a secured agent, scraped by Prometheus: every panel against the truth; a minute
	@ULLAGE_SCENARIO_MIB=1024 tools/stage scenario $(BIN)/python -m pytest tests/cluster/test_scenario.py

proof-full: $(STAMP) ## All of the proof with one SEED, half an hour: the table of docs/reliability.md
	@tools/stage "proof, seed $(SEED)" $(BIN)/python -m tests.proof --seed $(SEED) --write-docs

crash-full: $(STAMP) ## Every crash state of every workload, kills, and crashes during recovery, with two seeds: some minutes
	@for seed in $(CRASH_SEEDS); do \
		ULLAGE_CRASH_SEED=$$seed ULLAGE_CRASH_SAMPLE=1 ULLAGE_CRASH_NESTED=0.02 ULLAGE_CRASH_KILLS=0.3 ULLAGE_FAULTS=1 ULLAGE_MACHINE_EXAMPLES=1500 \
			tools/stage "crashes, seed $$seed" $(BIN)/python -m pytest -n 2 --dist load -rP --timeout 3600 tests/crash \
			|| exit 1; \
	done

crash-mutants: $(STAMP) ## Take each sync out of the engine in turn, three minutes: a test must notice
	@tools/stage mutants $(BIN)/python -m tests.crash.mutants

crash-tries: $(STAMP) ## Take each handler that keeps the engine going out of it in turn; MINUTES=40 with one SEED, goes on where it was
	@ULLAGE_SEED=$(SEED) ULLAGE_TRIES_MINUTES=$(MINUTES) tools/stage "tries, seed $(SEED)" $(BIN)/python -m tests.crash.tries

kill-full: $(STAMP) ## 200 kills on each filesystem, and 200 power cuts where that can be had: half an hour
	@ULLAGE_KILLS=$${ULLAGE_KILLS:-200} tools/stage kills $(BIN)/python -m pytest -n 2 -rP --timeout 3600 tests/kill

stress-full: $(STAMP) ## Every feature at once, killed and cut off at any moment; MINUTES=40 with one SEED, a failing seed replays
	@ULLAGE_SEED=$(SEED) ULLAGE_STRESS_MINUTES=$(MINUTES) tools/stage "stress, seed $(SEED)" $(BIN)/python -m pytest -rP --timeout 14400 tests/stress

calls-full: $(STAMP) ## Each call of the operator lost, repeated, late or refused, and the operator killed at it; MINUTES=40 with one SEED, goes on where it was
	@ULLAGE_SEED=$(SEED) ULLAGE_CALLS_MINUTES=$(MINUTES) tools/stage "calls, seed $(SEED)" $(BIN)/python -m pytest -rP -n 0 --timeout 14400 tests/cluster/test_operator_calls.py

spark-full: $(STAMP) ## A node stopped, killed, replaced or slow in each phase of a read, a write and a stream of Spark's, and the recipes, the example with Ray, the Thrift server, older versions of PySpark, the image's entrypoint and a content of 20 GiB; MINUTES=40 with one SEED, goes on where it was
	@ULLAGE_SEED=$(SEED) ULLAGE_SPARK_MINUTES=$(MINUTES) tools/stage "spark, seed $(SEED)" $(BIN)/python -m pytest -rP -n 0 --timeout 14400 tests/spark/test_phases.py tests/spark/full_recipes.py tests/spark/full_ray.py tests/spark/full_thrift.py tests/spark/full_versions.py tests/spark/full_image.py tests/spark/full_large.py

validity-full: $(STAMP) ## Every wild value in every field of every call; MINUTES=40 with one SEED, a failing seed replays
	@ULLAGE_SEED=$(SEED) ULLAGE_VALIDITY_MINUTES=$(MINUTES) tools/stage "validity, seed $(SEED)" $(BIN)/python -m pytest -rP --timeout 14400 tests/validity

goal-full: $(STAMP) ## Goals of compaction under four loads, a simulated day each, looked at each minute: MINUTES=40 with one SEED, goes on where it was; with DISK=DIR instead on that disk and the real clock
	@ULLAGE_SEED=$(SEED) ULLAGE_GOAL_MINUTES=$(MINUTES) tools/stage "goal, seed $(SEED)" $(BIN)/python -m tests.engine.reclaim.goalfull $(if $(DISK),--disk $(DISK))

forecast-full: $(STAMP) ## Twenty worlds for each kind of dead byte: it came back within the times that were told; a quarter of an hour
	@ULLAGE_FORECAST_FULL=1 tools/stage forecasts $(BIN)/python -m pytest -n 2 -rP --timeout 3600 tests/engine/reclaim/test_forecast_kept.py

rot-full: $(STAMP) ## Flip every bit and cut at every length, and salvage what is ruined: half an hour
	@ULLAGE_ROT_SAMPLE=1 ULLAGE_SALVAGE_ROUNDS=100 tools/stage rot $(BIN)/python -m pytest -n 2 -rP --timeout 3600 tests/rot

nifi-full: $(STAMP) ## A hundred repositories that NiFi's own classes write, surveyed, reclaimed, rewritten, stopped at each call, and opened by them; surveys beside a NiFi at work; needs Maven; NIFI_SRC names more source; MINUTES=40 with one SEED, goes on where it was
	@ULLAGE_SEED=$(SEED) ULLAGE_NIFI_MINUTES=$(MINUTES) tools/stage "NiFi, seed $(SEED)" $(BIN)/python -m tests.nifi.full
	@ULLAGE_NIFI_FULL=1 tools/stage "hostile NiFi" $(BIN)/python -m pytest -n 2 --timeout 3600 tests/nifi

fuzz-full: MINUTES = 10
fuzz-full: $(STAMP) ## Hostile bytes for an agent, MINUTES=10 with one SEED, and for every parser; guided by coverage if atheris is installed
	@ULLAGE_FUZZ_SEED=$(SEED) ULLAGE_FUZZ_MINUTES=$(MINUTES) tools/stage "hostile bytes" $(BIN)/python -m pytest -s --timeout 14400 tests/fuzz/test_wire.py
	@ULLAGE_FUZZ_EXAMPLES=20000 tools/stage fuzz $(BIN)/python -m pytest -n 2 -rP --timeout 3600 --ignore tests/fuzz/test_wire.py tests/fuzz
	@tools/stage "guided fuzz" $(BIN)/python -m tests.fuzz.guided

bench: $(STAMP) ## Measure, and print the ratios of docs/performance.md
	@$(BIN)/python -m bench

bench-peers: $(STAMP) ## The same beside NiFi's and Ambry's own classes; needs Maven; NIFI_SRC and AMBRY_SRC name their source
	@$(BIN)/python -m bench --peers

bench-check: $(STAMP) ## Has a change made a main operation slower than at BASE (a revision or a directory)? 20 minutes
	@$(BIN)/python -m bench.check $(BASE)

bench-scale: COUNTS = 100000 1000000 10000000 100000000
bench-scale: $(STAMP) ## What a node costs that holds ever more handles, COUNTS of them, in 2 GiB of memory; needs root, 40 GB and hours
	@$(BIN)/python -m bench.scale --counts $(COUNTS)

soak: $(STAMP) ## An hour of mixed load on a node: do memory, descriptors, disk and waiting stay as they were?
	@$(BIN)/python -m bench.soak --write-docs --picture docs/soak.png

dist: $(STAMP) ## Build the wheel and the source archive into dist/
	@$(BIN)/python -m build --no-isolation

generate: $(STAMP) ## Write what is made from the contract: crds/, deploy/install.yaml, the chart's files, docs/configuration.md
	@$(BIN)/python -m tools.generate

release: $(STAMP) ## Build a release into dist/: wheel, images, chart, lists of packages, digests of all; needs root
	@$(BIN)/python -m tools.release build

release-check: $(STAMP) ## Build it once more from nothing, half an hour: every digest must be the same
	@$(BIN)/python -m tools.release check

push: $(STAMP) ## Push that release to a registry of yours, REGISTRY=registry.example/ullage; PUSH_OPTIONS go to `oras cp`
	@$(BIN)/python -m tools.release push $(REGISTRY) -- $(PUSH_OPTIONS)

lock: ## Pin the newest versions that pyproject.toml allows
	@tools/lock

clean: ## Remove the environment and everything that was built
	@rm -rf .venv .fuzz .proof dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find agent tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

INPUTS := pyproject.toml requirements-dev.lock $(wildcard deploy/*.lock) tools/bootstrap agent/ullage/__init__.py

$(STAMP): $(INPUTS)
	@tools/stage environment tools/bootstrap
	@touch $(RUN_STAMP) $@

# What `make run` needs is a part of that, and quick to get.
$(RUN_STAMP): $(INPUTS)
	@tools/stage environment tools/bootstrap run
	@touch $@
