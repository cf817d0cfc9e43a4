# Thin verbs; README.md says what each is for.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
PACKAGES := client engine-image operator
INPUTS := constraints.txt $(PACKAGES:%=%/pyproject.toml)
TIERS := api chart e2e model
SUITES := tests/unit tests/fuzz tests/contract tests/chaos tests/api tests/chart tests/e2e
DEVCLUSTER := PYTHONPATH=tests $(BIN)/python -m devcluster

.PHONY: help env demo demo-down images tiers test soak test-unit test-vllm lint format verify generate bench lock
.DEFAULT_GOAL := help

help: ## Show the verbs
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

env: $(STAMP) ## Create the virtual environment

$(STAMP): $(INPUTS)
	@echo "== virtual environment: pinned packages, a few minutes the first time"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r constraints.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation $(PACKAGES:%=-e %)
	@touch $@

demo: $(STAMP) ## From nothing to tokens on a real Kubernetes (or the one of KUBECONFIG)
	PYTHONPATH=tests $(BIN)/python examples/demo up

demo-down: $(STAMP) ## Remove every trace of the demo
	PYTHONPATH=tests $(BIN)/python examples/demo down

images: $(STAMP) ## Build the container images (buildah; kept in ~/.cache/enginecore)
	PYTHONPATH=tests $(BIN)/python tests/support/images.py

tiers: $(STAMP)
	@echo "== checkpoint and Kubernetes programs (built once, about 15 minutes the first time)"
	$(BIN)/python tests/support/checkpoint.py
	$(DEVCLUSTER) build --tier chart
	$(DEVCLUSTER) build --tier node
	@echo "== one node per machine: the demo's cluster goes down if it is up"
	$(DEVCLUSTER) down --name demo

test: tiers ## Every tier that needs no vLLM, on a real Kubernetes it builds and starts itself
	$(BIN)/pytest $(TIERS:%=--tier %) $(SUITES)

soak: tiers ## The tests that repeat or watch something, as often or as long as was asked for
	$(BIN)/pytest $(TIERS:%=--tier %) --full-counts -m counted $(SUITES)

test-unit: $(STAMP) ## Unit tests only: no socket, no cluster
	$(BIN)/pytest tests/unit

test-vllm: tiers ## What needs a real vLLM (6 GB, built once), in pods of a real Kubernetes too
	$(BIN)/python tests/support/vllm_environment.py
	$(BIN)/pytest --tier vllm --tier model -m vllm

bench: $(STAMP) ## Measure against peers and floors; prints each bar and its verdict
	PYTHONPATH=tests $(BIN)/python -m bench

FUZZ_SECONDS ?= 60

fuzz: $(STAMP) ## Look for bytes that a decoder neither reads nor refuses (FUZZ_SECONDS=60)
	PYTHONPATH=tests $(BIN)/python -m fuzz $(FUZZ_SECONDS)

lint: $(STAMP) ## Style, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=tests $(BIN)/mypy --explicit-package-bases tests/bench tests/chaos
	$(BIN)/lint-imports

format: $(STAMP) ## Rewrite sources in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generate: $(STAMP) ## Write generated files: CRDs, chart tables, manifests/install
	$(BIN)/python -m enginecore_operator.api.crdgen --write manifests/crds
	HELM=$$($(DEVCLUSTER) bin helm) $(BIN)/python charts/generate.py

verify: $(STAMP) ## Fail where a generated file is not up to date
	$(BIN)/python -m enginecore_operator.api.crdgen --check manifests/crds
	HELM=$$($(DEVCLUSTER) bin helm) $(BIN)/python charts/generate.py --check

COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
  --no-annotate --no-emit-package enginecore-client

lock: ## Pin every dependency again (needs uv)
	$(COMPILE) $(PACKAGES:%=%/pyproject.toml) --all-extras --group pyproject.toml:dev \
	  -o constraints.txt
	echo setuptools | $(COMPILE) -c constraints.txt operator/pyproject.toml client/pyproject.toml \
	  --extra coordinator - -o operator/requirements.txt
	echo setuptools | $(COMPILE) -c constraints.txt --no-emit-package numpy \
	  engine-image/pyproject.toml --extra checkpoints - -o engine-image/requirements.txt
