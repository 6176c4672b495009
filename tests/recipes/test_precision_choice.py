"""Recipes without `--bf16`: begun on a CPU with bf16 units, resumed on one without, fine-tuned on either."""

import json

import pytest
from helpers.recipe_runs import cut_off, recipe, write_inputs

from bert_hf import PreTrainer
from bert_hf.config import precision


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("precision"), documents=40)


def pretrain(place, *words):
    return recipe("pretrain")(
        [
            "--config_name", str(place / "tiny.json"), "--train_file", str(place / "text.txt"), "--vocab_size", "200",
            "--cache_dir", str(place / "cache"), "--validation_split_percentage", "20", "--max_seq_length", "32",
            "--max_steps", "6", "--per_device_train_batch_size", "4", "--save_steps", "2", "--warmup_steps", "2",
            "--disable_tqdm", "true", "--use_cpu", "--output_dir", str(place / "pretrained"), *words,
        ]
    )  # fmt: skip


def bf16_units(monkeypatch, units):
    monkeypatch.setattr(precision, "cpu_bf16_feature", lambda: units)
    monkeypatch.setitem(precision.FASTER_FROM, "avx512_bf16 of AMD", 16)
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)


def test_a_run_keeps_the_precision_that_it_began_in(place, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        bf16_units(patch, "avx512_bf16 of AMD")
        with cut_off(PreTrainer):
            pretrain(place)
    said = capsys.readouterr().out
    assert said.count("precision:") == said.count("precision: bf16") == 1
    bf16_units(monkeypatch, "none")
    assert pretrain(place) == 0
    assert pretrain(place, "--overwrite_output_dir") == 0  # its own run
    said = capsys.readouterr().out
    assert "resuming from" in said
    assert "this run is already complete" in said
    assert "precision: bf16 (as the run began" in said
    assert json.loads((place / "pretrained/run.json").read_text())["identity"]["precision"] == "bf16"
    assert pretrain(place, "--bf16", "false") == 2  # another run
    assert "precision" in capsys.readouterr().err
