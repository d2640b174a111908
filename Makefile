# The targets of the project. `make` without a target lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := build/demo
PEERS := build/peers
TRAINED_ON := --data=$(DEMO)/data
RESULTS := build/results
CORPORA ?= corpora
REAL_TEXT = $(BIN)/python -m experiments.real_text $(RESULTS)/real --corpora=$(CORPORA) --results=experiments/results
export TF_CPP_MIN_LOG_LEVEL ?= 2
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -ec

.DEFAULT_GOAL := help
.PHONY: help setup demo test fast-tests test-slow lint format golden bench bench-decode clean \
  gpu-export results results-experts results-learning results-tldr results-both

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 16

# uv takes a quarter of pip's time. Where it finds no packages (it does not read pip.conf), pip does.
$(VENV)/.ready: setup.py pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv || true
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --editable '.[dev]' \
	  || $(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

setup: $(VENV)/.ready  ## create .venv with the package and its dependencies

$(DEMO)/data/dataset.json: | setup
	$(BIN)/lingvo-moe-prepare --synthetic --output=$(DEMO)/data --source_vocab_size=1536 --target_vocab_size=768

# After an interruption, `make demo` again continues where it stopped.
demo: setup $(DEMO)/data/dataset.json  ## raw text to a trained and exported translator (4 to 15 minutes): build/demo
	$(BIN)/lingvo-moe-train --model=tiny.MoE $(TRAINED_ON) --logdir=$(DEMO)/models/tiny.MoE
	$(BIN)/lingvo-moe-baselines --model=tiny.Bilingual $(TRAINED_ON) --output=$(DEMO)/baselines
	$(BIN)/lingvo-moe-evaluate --model=tiny.MoE $(TRAINED_ON) --logdir=$(DEMO)/models/tiny.MoE \
	  --baselines=$(DEMO)/baselines --output=$(DEMO)/report --overwrite
	$(BIN)/lingvo-moe-export --model=tiny.MoE --logdir=$(DEMO)/models/tiny.MoE --output=$(DEMO)/export --overwrite
	@echo 'Three test sentences through the export, in a process that imports only TensorFlow and tensorflow-text:'
	@head -qn1 $(DEMO)/data_raw/test/qna-en.qna $(DEMO)/data_raw/test/qka-en.qka \
	  $(DEMO)/data_raw/test/qta-en.qta > $(DEMO)/three.txt
	@$(BIN)/python -I $(DEMO)/export/translate.py < $(DEMO)/three.txt 2> $(DEMO)/client.log \
	  | paste $(DEMO)/three.txt - || (cat $(DEMO)/client.log; false)
	@echo 'Open $(DEMO)/report/index.html'

test: setup  ## lint and the tests, at the same time (6 to 15 minutes)
	@$(MAKE) --no-print-directory -j2 lint fast-tests

# Two workers: a third imports and compiles for longer than the others wait. glibc keeps the memory
# that is freed, which saves a tenth of the time.
fast-tests: export MALLOC_MMAP_THRESHOLD_ = 33554432
fast-tests: export MALLOC_TRIM_THRESHOLD_ = 4000000000
fast-tests: export MALLOC_TOP_PAD_ = 67108864
fast-tests:
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-slow: setup  ## the slow tests
	$(BIN)/python -m pip install --quiet --editable '.[slow]'
	$(BIN)/python -m pytest -m slow

lint: setup  ## ruff: check and format; mypy: types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: setup  ## fix and format the code with ruff
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

golden: setup  ## rewrite testdata/golden after a registered model was changed on purpose
	$(BIN)/python -m lingvo_moe.testing.golden testdata/golden

# If only PyPI can be reached, torch is installed with CUDA packages that a CPU does not use. There
# are two releases of transformers, because release 5 routes all choices of NLLB-MoE to experts 0 and
# 1 and computes four times as many expert rows as it should (docs/dev/notebook.md).
$(PEERS)/.ready: | setup
	$(PYTHON) -m venv $(PEERS)/.venv
	$(PEERS)/.venv/bin/python -m pip install --quiet torch --index-url https://download.pytorch.org/whl/cpu \
	  || $(PEERS)/.venv/bin/python -m pip install --quiet torch
	$(PEERS)/.venv/bin/python -m pip install --quiet 'transformers<4.50' numpy sentencepiece protobuf sacrebleu
	$(PEERS)/.venv/bin/python -m pip install --quiet --target $(PEERS)/transformers5 --upgrade 'transformers>=5'
	@touch $@

$(PEERS)/.ctranslate2: | setup
	test -d $(PEERS)/.venv || $(PYTHON) -m venv $(PEERS)/.venv
	$(PEERS)/.venv/bin/python -m pip install --quiet 'ctranslate2>=4.8,<5' numpy
	@touch $@

bench: setup $(PEERS)/.ready  ## measure training speed: the tables of benchmarks/results (30 minutes)
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/moe_layer.py
	$(BIN)/python benchmarks/block_sparse.py build/block_sparse --export=float32
	$(BIN)/python benchmarks/training_step.py

bench-decode: setup $(PEERS)/.ready $(PEERS)/.ctranslate2  ## measure decoding speed, with CTranslate2 and Hugging Face
	$(BIN)/python benchmarks/decode.py

# A Transformer of 12 layers with a top-2 MoE in every second one, in bfloat16: to copy to a machine
# with a GPU (docs/dev/benchmarks.md).
GPU = build/gpu
GPU_STEP = --model=tiny.MoE --set=activation_dtype=bfloat16 \
  --set="model.moe.gating=TopK(k=2)" --set=model.model_dim=1024 --set=model.hidden_dim=4096 --set=model.num_heads=16 \
  --set=model.head_dim=64 --set=model.num_encoder_layers=6 --set=model.num_decoder_layers=6 --set=input.batch_size=128 \
  --set=input.source_length=128 --set=input.target_length=128 --set=source_vocab_size=32000 --set=target_vocab_size=32000
gpu-export: setup  ## programs and scripts to measure on a GPU: build/gpu
	mkdir -p $(GPU)
	$(BIN)/python benchmarks/block_sparse.py $(GPU)/products --export=bfloat16 --rounds=0
	for experts in 16 64 128; do \
	  $(BIN)/python benchmarks/gpu_export.py $(GPU)/experts$$experts $(GPU_STEP) --set=model.moe.num_experts=$$experts || exit 1; \
	done
	$(BIN)/python benchmarks/gpu_export.py $(GPU)/dropless16 $(GPU_STEP) --set=model.moe.num_experts=16 \
	  --set="model.moe.training=Ragged()"
	cp benchmarks/block_sparse.py benchmarks/gpu_step.py benchmarks/_torch_model.py $(GPU)

# Runs that are complete are not repeated, so after an interruption the same command goes on. With
# `make -k results` an error in one part does not stop the other parts.
results: results-learning results-tldr results-wikimessages results-both  ## the tables of experiments/results on real text and "Width and depth" (takes days; needs CORPORA=DIR)

results-learning: setup $(PEERS)/.ready
	$(BIN)/python -m experiments.learning $(RESULTS) --corpora=$(CORPORA) \
	  --only=scale/ --only=rates/ --only=peer/ --only=budget --only=recipe/ --only=knob/
	PYTHONPATH=$(PEERS)/transformers5 $(PEERS)/.venv/bin/python -m experiments.learning_run $(RESULTS) --only=M2M-100 --workers=1
	$(BIN)/python -m experiments.learning $(RESULTS) --results=experiments/results

# The tables of pairs are those of the seed that ran last.
results-tldr: setup
	for seed in 1 2 3; do $(REAL_TEXT) --seed=$$seed --baseline=small.Bilingual --baseline=small.BilingualNarrow \
	  --set=activation_dtype=bfloat16 || exit 1; done

results-wikimessages: setup
	$(REAL_TEXT) --corpus=wikimessages --set=activation_dtype=bfloat16 --baseline=small.BilingualNarrow \
	  --baseline_set=input.batch_size=8 --baseline_set=train.max_steps=600

results-both: setup
	$(REAL_TEXT) --corpus=both --set=activation_dtype=bfloat16 --baseline=small.BilingualNarrow --baseline=small.Bilingual \
	  --baseline_set=input.batch_size=8 --baseline_set=small.BilingualNarrow:train.max_steps=600 \
	  --baseline_set=small.Bilingual:train.max_steps=250

EXPERTS = $(RESULTS)/experts
results-experts: setup  ## experts_*: dense, 32 and 128 experts from English into 200 and 40 languages (takes two days; needs EBIBLE=DIR, a checkout of BibleNLP/ebible)
	test -d $(EXPERTS)/corpora || $(BIN)/python -m experiments.verses $(EBIBLE) $(EXPERTS)/corpora
	for n in 200 40; do test -d $(EXPERTS)/data_$$n || \
	  $(BIN)/lingvo-moe-prepare --corpus=$(EXPERTS)/corpora/english_$$n --output=$(EXPERTS)/data_$$n --joint_vocab; done
	$(BIN)/python -m experiments.experts width --data=$(EXPERTS)/data_200 --runs=$(EXPERTS)/runs --seeds=1,2,3 \
	  --rows="dense,32 experts,32 experts in every layer,128 experts"
	for study in power_law baselines; do \
	  $(BIN)/python -m experiments.experts $$study --data=$(EXPERTS)/data_40 --runs=$(EXPERTS)/runs; done

clean:  ## remove all generated files, also .venv
	rm -rf build $(VENV) .pytest_cache .ruff_cache .mypy_cache *.egg-info
