# What can be made. `make` alone lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := build/demo
PEERS := build/peers
TRAINED_ON := --data=$(DEMO)/data
export TF_CPP_MIN_LOG_LEVEL ?= 2
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -ec

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint format golden bench bench-decode clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 12

$(VENV)/.ready: setup.py pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

setup: $(VENV)/.ready  ## make .venv with the package and all it needs

$(DEMO)/data/dataset.json: | setup
	$(BIN)/lingvo-moe-prepare --synthetic --output=$(DEMO)/data --source_vocab_size=1536 --target_vocab_size=768

# Every step goes on from where an interrupted demo stopped.
demo: setup $(DEMO)/data/dataset.json  ## raw text to a served translator, in minutes: build/demo
	$(BIN)/lingvo-moe-train --model=tiny.MoE $(TRAINED_ON) --logdir=$(DEMO)/models/tiny.MoE
	$(BIN)/lingvo-moe-baselines --model=tiny.Bilingual $(TRAINED_ON) --output=$(DEMO)/baselines
	$(BIN)/lingvo-moe-evaluate --model=tiny.MoE $(TRAINED_ON) --logdir=$(DEMO)/models/tiny.MoE \
	  --baselines=$(DEMO)/baselines --output=$(DEMO)/report --overwrite
	$(BIN)/lingvo-moe-export --model=tiny.MoE --logdir=$(DEMO)/models/tiny.MoE --output=$(DEMO)/export
	@echo 'Three test sentences through the export, in a process that knows TensorFlow alone:'
	@head -qn1 $(DEMO)/data_raw/test/qna-en.qna $(DEMO)/data_raw/test/qka-en.qka \
	  $(DEMO)/data_raw/test/qta-en.qta > $(DEMO)/three.txt
	@$(BIN)/python -I $(DEMO)/export/translate.py < $(DEMO)/three.txt 2> $(DEMO)/client.log \
	  | paste $(DEMO)/three.txt - || (cat $(DEMO)/client.log; false)
	@echo 'Open $(DEMO)/report/index.html'

test: lint  ## lint, then the tests (minutes)
	$(BIN)/python -m pytest -n 2

test-slow: setup  ## the tests that take long
	$(BIN)/python -m pytest -m slow

lint: setup  ## ruff: check and format; mypy: types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: setup  ## let ruff mend what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

golden: setup  ## refresh testdata/golden after a deliberate change of a registered model
	$(BIN)/python -m lingvo_moe.tools.models --golden=testdata/golden

# Where only PyPI can be reached torch comes with much that a CPU never loads. Transformers twice:
# in release 5 all choices fall on experts 0 and 1, four times as many as there should be.
$(PEERS)/.ready: | setup
	$(PYTHON) -m venv $(PEERS)/.venv
	$(PEERS)/.venv/bin/python -m pip install --quiet torch --index-url https://download.pytorch.org/whl/cpu \
	  || $(PEERS)/.venv/bin/python -m pip install --quiet torch
	$(PEERS)/.venv/bin/python -m pip install --quiet 'transformers<4.50' numpy sentencepiece
	$(PEERS)/.venv/bin/python -m pip install --quiet --target $(PEERS)/transformers5 --upgrade 'transformers>=5'
	@touch $@

$(PEERS)/.ctranslate2: | setup
	test -d $(PEERS)/.venv || $(PYTHON) -m venv $(PEERS)/.venv
	$(PEERS)/.venv/bin/python -m pip install --quiet 'ctranslate2>=4.8,<5' numpy
	@touch $@

bench: setup $(PEERS)/.ready  ## speed beside peers, dispatchers, growth: the tables of docs/benchmarks.md
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/moe_layer.py
	$(BIN)/python benchmarks/block_sparse.py build/block_sparse --export=float32
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/training_step.py

bench-decode: setup $(PEERS)/.ready $(PEERS)/.ctranslate2  ## decoding speed beside CTranslate2 and Hugging Face
	$(BIN)/python benchmarks/decode.py

clean:  ## remove what was made, .venv too
	rm -rf build $(VENV) .pytest_cache .ruff_cache .mypy_cache *.egg-info
