"""The end summary and the card of a run: figures, limits, the command that comes next."""

import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.recipe_runs import recipe
from tiny import tiny_config, tiny_tokenizer

from bert_hf import BertForPreTraining, PreTrainingExamples
from bert_hf.config.arguments import (
    CorpusArguments,
    ExampleArguments,
    OutputArguments,
    PrepareArguments,
    TextArguments,
    TokenizerArguments,
)
from bert_hf.config.parser import parse
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.data.corpus.store import Corpus
from bert_hf.pretraining.report import PreTrainingReport, pretraining_card, report_heldout, untrained_positions_warning
from bert_hf.training import command

ROOT = Path(__file__).parents[2]
PREPARING = (TokenizerArguments, TextArguments, ExampleArguments, PrepareArguments, OutputArguments)
METRICS = {"eval_mlm_loss": 6.0, "eval_mlm_accuracy": 0.1, "eval_nsp_accuracy": 0.5}


@pytest.fixture
def tokenizer():
    return tiny_tokenizer()  # its own: fine-tuning records the trained length in a tokenizer


def reference(majority, pairs):
    return {"unigram_mlm_loss": 6.5, "majority_nsp_accuracy": majority, "nsp_pairs": pairs}


@pytest.mark.parametrize(
    ("accuracy", "majority", "pairs", "expected"),
    [
        (0.5, 1.0, 2, "(majority 1.000: too few pairs to judge by, all 2 are of one class)"),
        (1.0, 1.0, 2, "(majority 1.000: too few pairs to judge by, all 2 are of one class)"),
        (0.6, 0.5, 100, "(majority 0.500, +2.0 standard errors on 100 pairs)"),
    ],
)
def test_pairs_of_one_class_have_no_standard_error(capsys, accuracy, majority, pairs, expected):
    report_heldout("after", {**METRICS, "eval_nsp_accuracy": accuracy}, reference(majority, pairs))
    said = capsys.readouterr().out
    assert said.rstrip().endswith(expected)
    assert "nan" not in said
    assert "inf" not in said


def test_the_command_after_a_vocabulary_prepares_the_same_text(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("body,id\n" + "Ein Satz hier. Noch einer.,x\n" * 4)
    text = ["--train_file", "*.csv", "--text_column", "body", "--language", "de", "--sentence_per_line", "true"]
    assert recipe("train_tokenizer")([*text, "--output_dir", "t", "--cache_dir", "cache"]) == 0
    words = shlex.split(capsys.readouterr().out.split("next: ")[1])
    assert Path(words[0]).name == "bert-hf"
    assert words[1] == "prepare"

    tokenizer, corpus, *_, output = parse(PREPARING, words[2:])
    assert corpus == TextArguments(train_file=["*.csv"], text_column="body", language="de", sentence_per_line=True)
    assert (tokenizer.tokenizer_name, output.output_dir) == ("t", "runs/corpus")


@pytest.mark.parametrize(("launched", "launcher"), [(True, "accelerate launch"), (False, "python")])
def test_the_card_s_command_is_the_one_that_was_given(monkeypatch, launched, launcher):
    monkeypatch.setattr(sys, "argv", ["a.py", "--seed", "1"])
    monkeypatch.setattr(command, "was_launched", lambda: launched)
    monkeypatch.delenv(command.COMMAND_VARIABLE, raising=False)
    assert command.command_line() == f"{launcher} a.py --seed 1"


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ({"max_seq_length": 32}, ["Positions 33 to 64 are untrained by this run: truncate to 32 (max_length=32)"]),
        ({"max_seq_length": 32, "long_seq_length": 64}, []),
        ({"max_seq_length": 64}, []),
    ],
)
def test_positions_that_were_not_trained_are_named(tokenizer, config, lengths, said):
    limits = untrained_positions_warning(ExampleArguments(**lengths), config, tokenizer)
    assert len(limits) == len(said)
    assert all(part in limit for part, limit in zip(said, limits, strict=True))


def test_the_card_of_a_run_names_the_held_out_file_and_its_limits(tokenizer, tmp_path):
    manifest = {"fingerprint": "f" * 64, "unknown_share": 0.0, "shards": []}
    corpus = Corpus("corpus", manifest)
    corpus.tokens = 7

    class Model:
        config = tiny_config()
        name_or_path = ""

    args = PreTrainingArguments(str(tmp_path), max_steps=8, bf16=False, use_cpu=True)
    lengths = ExampleArguments(max_seq_length=32)
    said = []
    for validation in (None, ["text/valid.txt"]):
        text = CorpusArguments(train_file=["a.txt"], validation_file=validation)
        card = pretraining_card(args, text, lengths, Model, tokenizer, corpus)
        said.append(card.held_out)
        assert "Positions 33 to 64" in card.limits[0]
    assert said == ["documents held out of the same text", "the text given by --validation_file (valid.txt)"]


@pytest.mark.parametrize(
    ("checkpoint", "base"), [("", None), ("google-bert/bert-tiny", "google-bert/bert-tiny"), (".", None)]
)
def test_the_card_of_a_continued_run_names_its_checkpoint(tokenizer, tmp_path, checkpoint, base):
    """A folder of this machine is no id of the Hub."""
    corpus = Corpus("corpus", {"fingerprint": "f" * 64, "unknown_share": 0.0, "shards": []})
    corpus.tokens = 7
    model = BertForPreTraining(tiny_config())
    assert not model.name_or_path
    model.name_or_path = checkpoint

    args = PreTrainingArguments(str(tmp_path), max_steps=8, bf16=False, use_cpu=True)
    text = CorpusArguments(dataset_name="wikimedia/wikipedia")
    card = pretraining_card(args, text, ExampleArguments(), model, tokenizer, corpus)

    assert card.base_model == base
    assert card.language is None
    corpus.manifest["text_language"] = "de"  # named when the corpus was prepared
    assert pretraining_card(args, text, ExampleArguments(), model, tokenizer, corpus).language == "de"
    assert card.dataset == "wikimedia/wikipedia"


@pytest.mark.parametrize(("single", "repeated"), [(0, False), (200, True)])
def test_documents_that_an_epoch_repeats_are_reported(tokenizer, single, repeated):
    """With 200 documents of one sentence, the 20 of several are used again until half of the pairs are theirs."""
    texts = ["w1 w2 w3\nw4 w5 w6\nw7 w8"] * 20 + ["w9 w10 w11"] * single
    examples = PreTrainingExamples(texts, tokenizer=tokenizer, language=None, max_seq_length=32)
    report = PreTrainingReport(SimpleNamespace(train_dataset=examples), None, None, ExampleArguments(), None)
    lines = report._repetition_warning()
    assert len(lines) == repeated
    assert all("passes over the text" in line for line in lines)
