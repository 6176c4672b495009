# make pretrain · make spam · make test: each target installs into .venv first where that is necessary.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
LAUNCH := $(BIN)/accelerate launch --config_file accelerate_config.yaml
TESTS := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: help install pretrain spam demo test test-slow gpu faults cluster coverage lint format types hooks docs docs-links package test-newest test-lowest clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

# Repeated when the requirements change. torch comes first: a package that needs it to build must not download another.
.venv/runtime: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) torch setuptools wheel
	$(PIP) -e .
	touch $@

.venv/installed: .venv/runtime
	$(PIP) -e ".[dev]"
	touch $@

.venv/release: .venv/installed
	$(PIP) -e ".[release]"
	touch $@

install: .venv/installed  ## create .venv and install everything, developer tools included

pretrain: .venv/runtime  ## pre-train a small BERT on the English documentation of this machine
	$(LAUNCH) recipes/pretrain.py

spam: pretrain  ## fine-tune that checkpoint on a small set of messages; compare it with random weights in five folds
	$(LAUNCH) recipes/finetune_classification.py --config configs/finetune/spam-messages.yaml
	test -f runs/spam-folds/split.json || $(BIN)/python recipes/split.py --output_dir runs/spam-folds --folds 5 \
		--train_file src/bert_hf/finetuning/messages/spam.tsv
	$(BIN)/python recipes/study.py --output_dir runs/spam-study --folds_dir runs/spam-folds --seeds 1 \
		--models pretrained=runs/pretrain-default random=runs/pretrain-default:from_scratch \
		--config configs/finetune/spam-messages.yaml

.venv/demo: .venv/runtime
	$(PIP) -e ".[demo]"
	touch $@

demo: .venv/demo  ## open that checkpoint in the browser: it predicts while you type
	@test -f runs/pretrain-default/model.safetensors || $(MAKE) pretrain
	$(BIN)/bert-hf demo runs/pretrain-default

test: .venv/installed  ## run the tests
	$(TESTS)

test-slow: .venv/installed  ## run the long tests too
	$(TESTS) -m "not gpu"

gpu: .venv/installed  ## run what needs a GPU: its tests, then the throughput beside the stock model
	@if $(BIN)/python -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then \
		$(BIN)/python -m pytest -q -m gpu tests/models tests/training && \
		$(BIN)/python benchmarks/pretraining_throughput.py --config_name configs/model/base.json --batch_size 256 \
			--steps 20 --warmup 6 --pairs 2; \
	else echo "no GPU here: nothing to run"; fi

faults: .venv/installed  ## inject kills, damaged files, signals and full disks into runs (about 45 minutes)
	$(BIN)/python tests/faults/run_faults.py

cluster: .venv/installed  ## run the examples of launch/ on two hosts made of namespaces (root; about 25 minutes)
	$(BIN)/python tests/cluster/run_cluster.py

coverage: .venv/installed  ## run the tests and print which lines they reach
	$(TESTS) --cov --cov-report=term

lint: .venv/installed  ## check style
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

format: .venv/installed  ## fix style
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

types: .venv/installed  ## check type annotations
	$(BIN)/basedpyright

hooks: .venv/release  ## let git run the checks before each commit and push
	$(BIN)/pre-commit install

.venv/docs: .venv/runtime
	$(PIP) -e ".[docs]"
	touch $@

docs: .venv/docs pretrain  ## build the site into build/site; runs the notebooks of examples/
	$(BIN)/python -m sphinx -q -W --keep-going -c docs . build/site

docs-links: .venv/docs  ## check that the pages which the site links to can be reached (needs the network)
	$(BIN)/python -m sphinx -q -b linkcheck -D nb_execution_mode=off -c docs . build/links

package: .venv/release  ## build wheel and sdist, install the wheel into an empty environment and train there
	.ci/package

test-newest: .venv/installed  ## upgrade transformers and accelerate beyond constraints.txt, then run the tests
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade transformers accelerate
	$(TESTS)

LOWEST := build/lowest/bin/python -m pip install --quiet --disable-pip-version-check -c build/lowest.txt

test-lowest:  ## run the tests with the lowest versions that pyproject.toml allows, in an environment of its own
	$(PYTHON) -m venv build/lowest
	sed -nE '/^dependencies/,/^\]/ s/^ *"([a-zA-Z0-9_-]+)>=([0-9.]+).*/\1==\2/p' pyproject.toml > build/lowest.txt
	$(LOWEST) torch setuptools wheel
	$(LOWEST) -e ".[test]"
	build/lowest/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -W default  # old versions warn of new ones

clean:  ## remove what was created here, checkpoints included
	rm -rf .venv runs build dist
