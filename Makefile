# make pretrain · make spam · make test: each makes .venv first if it has to.
PYTHON ?= python3
BIN := .venv/bin
LAUNCH := $(BIN)/accelerate launch --config_file accelerate_config.yaml

.PHONY: help install pretrain spam test torture lint format clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

# Anew when what is installed changes. torch first: a build that needs it must not fetch another.
.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch setuptools wheel
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

install: .venv/installed  ## make .venv and install

pretrain: .venv/installed  ## pre-train a small BERT on the English documentation of this machine
	$(LAUNCH) recipes/pretrain.py

spam: pretrain  ## fine-tune that checkpoint on a small set of messages
	$(LAUNCH) recipes/finetune_classification.py --config configs/finetune/spam-messages.yaml

test: .venv/installed  ## run the tests
	$(BIN)/python -m pytest -n 2 --dist loadfile

torture: .venv/installed  ## kill, corrupt, signal and starve runs for about an hour: what survives
	$(BIN)/python benchmarks/torture.py

lint: .venv/installed  ## check style
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

format: .venv/installed  ## put into style
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

clean:  ## remove what was made here, checkpoints included
	rm -rf .venv runs
