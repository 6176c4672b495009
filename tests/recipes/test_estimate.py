"""The estimator's recipe: what is printed for a config, a corpus and a machine, and what is refused."""

import json

import numpy as np
import pytest
from helpers.corpora import Texts
from helpers.recipe_runs import ROOT, TINY, recipe
from helpers.token_stores import write

from bert_hf.analysis.estimate import trained_tokens
from bert_hf.config.arguments import CorpusArguments, ExampleArguments
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.data.corpus import store as corpus_store
from bert_hf.data.corpus.prepare import prepare
from bert_hf.data.examples.samplers import phases_of_run
from bert_hf.data.text.tokenization import train_tokenizer

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


@pytest.mark.parametrize("longer", [[], ["--long_seq_length", "64", "--long_seq_fraction", "0.5"]])
def test_epochs_of_a_prepared_corpus(longer, tmp_path, capsys):
    text = "\n".join(f"Sentence {i} of the text says what {i * i} is." for i in range(40))
    tokenizer = train_tokenizer([text], vocab_size=150)
    corpus = prepare([Texts([text, text, text, text])], tokenizer, tmp_path / "corpus")
    (tmp_path / "model.json").write_text(json.dumps(TINY))
    words = ["--config_name", str(tmp_path / "model.json"), "--train_file", str(tmp_path / "corpus")]
    words += ["--max_seq_length", "32", "--device", "cpu", "--global_batch", "4", "--num_train_epochs", "3"]
    assert estimate(*words, *longer) == 0
    said = capsys.readouterr().out
    assert f"passes over the {corpus.split(5)[0].tokens:,} tokens" in said
    passes = next(line for line in said.splitlines() if "passes over" in line).split()[0]
    assert float(passes) == pytest.approx(3, abs=0.05)
    assert f"vocabulary {len(tokenizer):,}" in said


def test_tokens_to_train_on_are_those_that_the_run_leaves(tmp_path, monkeypatch):
    """Documents are held out of the first window alone."""
    corpus = write(tmp_path, shards=6)
    monkeypatch.setattr(corpus_store, "WINDOW_TOKENS", corpus.manifest["tokens"] // 3)
    found = trained_tokens(CorpusArguments(train_file=[str(tmp_path)]), PreTrainingArguments(str(tmp_path)))
    left = corpus.split(5)[0].tokens
    assert found == left
    assert abs(0.95 * corpus.tokens - left) > 0.02 * corpus.tokens


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
