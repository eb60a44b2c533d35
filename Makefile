# Every target installs what it needs, into .venv, from requirements.lock.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3.11
TOOLS := $(HOME)/.cache/drumroll
UV := $(TOOLS)/uv/bin/uv
BIN := .venv/bin
READY := .venv/.ready
EXTRAS := local operator scheduler rollout trainer console cpu examples dev
SOURCES := drumroll planner/drumroll_planner operator/drumroll_operator services cli/drumroll_cli tests bench examples
PROTOS := $(wildcard proto/drumroll_proto/v1/*.proto)
# Spinning OpenMP threads cost 4 to 10 times on shared cores.
export OMP_WAIT_POLICY := PASSIVE
export HF_HUB_OFFLINE ?= 1

##@ Use
.PHONY: help
help: ## What there is
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(READY) ## A small language model learns arithmetic by asynchronous RL, on this machine (SEED=0)
	$(BIN)/python examples/first_light/make_model.py --out models/first-light --seed $(or $(SEED),0)
	$(BIN)/drumroll run examples/first-light.yaml --seed $(or $(SEED),0)

.PHONY: demo-gsm8k
demo-gsm8k: $(READY) ## SmolLM2-135M-Instruct on GSM8K, a few steps (DRUMROLL_DATA or a reachable hub)
	$(BIN)/python examples/gsm8k/prepare.py
	$(BIN)/drumroll run examples/gsm8k.yaml

##@ Develop
.PHONY: test
test: $(READY) ## Unit, property and integration tests (ARGS="-k lag" passes on to pytest)
	$(BIN)/pytest -n 2 --dist worksteal -m "not cluster and not vllm" --cov --cov-report=term:skip-covered --cov-report=json:.coverage.json $(ARGS)
	# vLLM forks its engine: in processes that have run nothing else.
	$(BIN)/pytest -n 2 --dist loadfile -m "vllm" $(ARGS)

# The tests on whole jobs wait for pods most of the time: those that need an API server alone run beside them.
define cluster-tests
	log=$$(mktemp); trap 'rm -f "$$log"' EXIT; failed=0; \
	$(BIN)/pytest -m "$(1)" tests/integration $(ARGS) >"$$log" 2>&1 & beside=$$!; \
	$(BIN)/pytest -n 3 --dist load --maxschedchunk 1 -m "$(1)" tests/e2e $(ARGS) || failed=$$?; \
	wait $$beside || failed=$$?; echo; echo "== tests/integration"; cat "$$log"; exit $$failed
endef

.PHONY: test-cluster
test-cluster: $(READY) ## Tests on a real Kubernetes: KUBECONFIG's, or one made by the tools that DRUMROLL_CLUSTER names
	$(call cluster-tests,cluster)

.PHONY: test-cluster-full
test-cluster-full: $(READY) ## The same and every fault; about an hour
	$(call cluster-tests,cluster or cluster_full)

.PHONY: check
check: $(READY) ## Lint, types, import contracts, generated files up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m drumroll.api.generate --check
	@if command -v helm > /dev/null; then helm lint --strict --quiet deploy/helm/drumroll; else echo "no helm on PATH: the chart is not linted"; fi
	@tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	  $(MAKE) -s --no-print-directory generate-proto PROTO_OUT="$$tmp"; \
	  diff -r --exclude=__pycache__ --exclude=__init__.py --exclude='*.proto' "$$tmp/drumroll_proto" proto/drumroll_proto \
	  || { echo "generated code is stale: run make proto"; exit 1; }

.PHONY: fmt
fmt: $(READY) ## Format
	$(BIN)/ruff check --fix-only -q .
	$(BIN)/ruff format -q .

.PHONY: proto
proto: $(READY) ## Generate the gRPC and protobuf code
	$(MAKE) -s generate-proto PROTO_OUT=proto

.PHONY: generate-proto
generate-proto:
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I proto --python_out=$(PROTO_OUT) --grpc_python_out=$(PROTO_OUT) \
	  --mypy_out=quiet:$(PROTO_OUT) --mypy_grpc_out=quiet:$(PROTO_OUT) $(PROTOS)

.PHONY: crd
crd: $(READY) ## Generate the CRD, its reference page and the page of its conditions
	$(BIN)/python -m drumroll.api.generate
	$(BIN)/python -m drumroll_operator.contract_page docs/conditions.md

.PHONY: lock
lock: $(UV) ## Resolve pyproject.toml anew into requirements.lock
	$(UV) lock --upgrade
	$(UV) export -q --no-emit-project --no-header --no-annotate $(addprefix --extra ,$(EXTRAS)) -o requirements.lock
	UV=$(UV) deploy/images/lock.sh

.PHONY: images
images: ## Container images (IMAGES="operator scheduler", GPU=1, TAG, IMAGE_PREFIX, ENGINE, BUILD_FLAGS: see deploy/images)
	deploy/images/build.sh $(IMAGES)

.PHONY: bench
bench: $(READY) ## Every figure that the docs state, measured here
	@for script in bench/*.py; do echo "== $$script"; $(BIN)/python $$script; done

.PHONY: clean
clean: ## Remove the environment and what runs left here
	rm -rf .venv runs models .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.json

$(UV):
	$(PYTHON) -m venv $(TOOLS)/uv
	$(TOOLS)/uv/bin/pip install -q uv

$(READY): requirements.lock pyproject.toml | $(UV)
	[ -x $(BIN)/python ] || $(UV) venv -q --python $(PYTHON) .venv
	$(UV) pip install -q --python $(BIN)/python --require-hashes --no-deps -r requirements.lock
	$(UV) pip install -q --python $(BIN)/python --no-deps -e .
	touch $(READY)
