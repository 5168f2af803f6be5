# Everything starts from these. `make demo` and `make test` work on a fresh machine with Python 3.11.
PYTHON ?= python3
BIN := .venv/bin
MODELS := .models
CONFIG ?= configs/local_pd.yaml

.DEFAULT_GOAL := help
.PHONY: help setup models demo demo-colocated up down test compat clean

help:  ## these lines
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' Makefile

setup:  ## the environment .venv, once (about 4 GB)
	@$(PYTHON) scripts/setup_env.py

models: setup  ## the model files in .models, once
	@$(BIN)/python -m engine.prepare_models $(MODELS)

demo: models  ## one agent session, two models, prefill and decode apart, shadow off and on: one table
	@$(BIN)/python -m bench.demo

demo-colocated: models  ## the same with one engine per model
	@$(BIN)/python -m bench.demo --colocated

up: models  ## starts the cluster of CONFIG and leaves it running
	@$(BIN)/shadowprefill up --detach $(CONFIG)

down:  ## stops it
	@$(BIN)/shadowprefill down

test: models  ## lint, types, import rules, unit tests, tests on real engines
	@$(BIN)/python -m tests.check

compat:  ## looks whether the newest published vLLM still has every internal name that we use
	@$(PYTHON) -m engine.check_compat

clean:  ## stops the cluster, removes what was built, keeps the environment and the models
	@test ! -d out/run || $(BIN)/shadowprefill down
	rm -rf out build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage
	find . -name __pycache__ -not -path './$(BIN:/bin=)/*' -prune -exec rm -rf {} +
