# Run `make help` for what there is. pip's own variables (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL, ...) reach it as they are.
PYTHON ?= $(shell python3.11 -c 'print("python3.11")' 2>/dev/null || echo python3)
VENV ?= .venv
CONSTRAINTS ?= constraints/dev.txt
MODEL ?= models/smollm2
SERVE ?=
# Test files that run side by side: half of the tests wait for processes, the other half for a core.
PROCESSES ?= 2
# Folders without a unit or property test, which `make check` does not even read.
WHOLE_STACKS := clients compose e2e kernels/aot kernels/interpret
BUF ?= npx --yes @bufbuild/buf@1.75.0
# What was released: clients of these go on working.
BASELINES := $(wildcard protos/released/*.binpb)
RELEASE ?= v1
# Of failures under load, in `make compose-test`.
ROUNDS ?= 20
export ROUNDS

BIN := $(VENV)/bin
# Written when the environment holds all that the tests need, and when it holds what serving needs, which is much less.
INSTALLED := $(VENV)/.octavo-installed
SERVABLE := $(if $(filter-out serve model,$(MAKECMDGOALS)),$(INSTALLED),$(or $(wildcard $(INSTALLED)),$(VENV)/.octavo-servable))
# Tests share the served model's folder instead of converting one of their own.
export OCTAVO_MODEL_CACHE ?= $(abspath $(dir $(MODEL)))
# What the demo model's folder was made from; written last.
FETCHED := $(MODEL)/octavo-model.json

# Whether there is one for the inspector's tests; `make test` goes on without.
BROWSER := command -v chromium >/dev/null && command -v chromedriver >/dev/null
NO_BROWSER := echo 'SKIPPED: the tests of the inspector page, for want of a browser: tests/inspector/setup.sh installs one'

# Waiting OpenMP threads sleep: spinning ones starve the services that share the cores.
export OMP_WAIT_POLICY ?= passive
# Services start hundreds of times in the tests: what they are made of is compiled once.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help env model serve check lint test clients-test browser-test compose-test soak inspector-pictures simulate-pictures protos protos-lint protos-baseline map clean

help: ## show this
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

# The editable install compiles the CPU kernels: a changed source is built again.
KERNEL_SOURCES := hatch_build.py kernels/cpu/build.py $(wildcard kernels/cpu/src/*)

$(INSTALLED): EXTRA := dev
$(VENV)/.octavo-servable: EXTRA := demo
$(INSTALLED) $(VENV)/.octavo-servable: pyproject.toml $(wildcard constraints/*.txt) $(KERNEL_SOURCES)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): a gigabyte or more, some minutes"
	$(BIN)/python -m pip install -q -c $(CONSTRAINTS) -e '.[$(EXTRA)]'
	@touch $@ $(VENV)/.octavo-servable

env: $(INSTALLED) ## make the environment in .venv

$(FETCHED): | $(SERVABLE)
	$(BIN)/octavo models fetch smollm2 --to $(MODEL)

model: $(FETCHED) ## fetch the demo model

serve: $(SERVABLE) $(FETCHED) ## serve the demo model; flags: make serve SERVE="--port 50060"
	@$(BIN)/octavo serve --model $(MODEL) $(SERVE)

lint: $(INSTALLED) # ruff, types, who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint ## quick checks: lint, types, imports, unit and property tests
	# A tenth of the manager's random lives; `make test` runs them all.
	OCTAVO_TEST_KV_WORLDS=8 $(BIN)/pytest -q -n $(PROCESSES) --dist loadfile -m 'unit or property' $(addprefix --ignore=tests/,$(WHOLE_STACKS))

test: lint $(FETCHED) ## everything but long runs, GPU and containers
	# Triton reads TRITON_INTERPRET when it is imported, so its interpreter and its compiler have a process each.
	TRITON_INTERPRET=1 $(BIN)/pytest -q -m interpret tests/kernels/interpret
	$(BIN)/pytest -q -n $(PROCESSES) -m aot tests/kernels/aot
	# A browser and the services it looks at want both cores to themselves.
	@if $(BROWSER); then $(BIN)/pytest -q -m browser tests/inspector; else $(NO_BROWSER); fi
	# In the order of their names: by the number of tests, as xdist would, the longest come last and one core rests.
	$(BIN)/pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder -m 'not soak and not gpu and not compose and not interpret and not aot and not clients and not browser'
	@$(BROWSER) || $(NO_BROWSER)

clients-test: $(INSTALLED) ## the contract with other people's clients, each in an environment of its own
	tests/clients/setup.sh
	$(BIN)/pytest -q tests/clients

browser-test: $(INSTALLED) ## the inspector's page in Chromium
	tests/inspector/setup.sh
	$(BIN)/pytest -q -m browser tests/inspector

compose-test: $(INSTALLED) $(FETCHED) ## images and compose on a Docker engine of its own (root, Debian); ROUNDS=20
	PYTHON=$(abspath $(BIN))/python deploy/compose-test.sh $(MODEL)

inspector-pictures: $(INSTALLED) ## the pictures of docs/inspector.md, taken of the page in Chromium
	tests/inspector/setup.sh
	$(BIN)/python docs/inspector/take_pictures.py

simulate-pictures: $(INSTALLED) ## the pictures of docs/simulate.md: make simulate-pictures TRACES=folder
	$(BIN)/octavo simulate --trace $(TRACES)/azure_llm_2023_conversation.csv.gz --memory 8,50 --plot docs/simulate-hour.svg
	$(BIN)/octavo simulate --trace $(TRACES)/mooncake_conversation.jsonl.gz --plot docs/simulate-hits.svg

soak: $(INSTALLED) $(FETCHED) ## long runs
	$(BIN)/pytest -m soak

protos: $(INSTALLED) ## generate the Python stubs from protos/
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python protos/generate.py

protos-lint: ## lint the protos, and refuse what would break clients of a released baseline
	$(BUF) lint
	$(foreach baseline,$(BASELINES),$(BUF) breaking --against $(baseline) &&) true

protos-baseline: ## release the protos as they are: make protos-baseline RELEASE=v1
	@mkdir -p protos/released
	$(BUF) build --exclude-source-info -o protos/released/$(RELEASE).binpb

map: $(INSTALLED) ## write the map of modules in docs/architecture.md
	$(BIN)/python docs/make_map.py

clean: ## remove caches and builds; the environment and models stay
	rm -rf build dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
