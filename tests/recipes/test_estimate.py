"""The estimator's recipe: what is printed for a config, a corpus and a machine, and what is refused."""

import numpy as np
import pytest
from helpers.recipe_runs import ROOT, recipe

from bert_hf.config.arguments import ExampleArguments
from bert_hf.data.examples.samplers import phases_of_run

BASE = ["--config", str(ROOT / "configs/pretrain/bert-base-paper.yaml")]


def estimate(*words):
    return recipe("estimate")(list(words))


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_the_paper_on_h200s(capsys):
    assert estimate(*BASE, "--num_devices", "1", "8", "512") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "An estimate, not a measurement."
    assert "110,106,428 parameters, 16-bit autocast" in said[1]
    assert "length 128: 900,000 steps, 27.722 G tokens" in said
    assert "in all: 40.042 G tokens, 2.230e+19 FLOPs" in said
    assert "does not divide 256" in "\n".join(said)
    eight = next(line.split() for line in said if line.startswith("8 ") and "×" in line)
    assert eight[1:4] == ["32", "×", "1"]
    assert eight[4] == "4.33"  # hours


def test_every_length_of_the_run_is_counted(capsys):
    words = ["--config_name", "configs/model/base.json", "--max_steps", "1001", "--per_device_train_batch_size", "32"]
    words += ["--long_seq_length", "512", "--long_seq_fraction", "0.1"]
    assert estimate(*words) == 0
    said = capsys.readouterr().out
    lengths = [line.split(",")[0] for line in said.splitlines() if line.startswith("length ")]
    example_args = ExampleArguments(long_seq_length=512)
    phases = phases_of_run(example_args.lengths(), 1001, global_batch=1)
    begins = [0, *(phase.end for phase in phases[:-1])]
    steps = np.diff([*begins, 1001]).tolist()
    assert lengths == [f"length {phase.max_seq_length}: {n} steps" for phase, n in zip(phases, steps, strict=True)]
