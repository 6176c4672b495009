"""Checks of many inputs, and of text that is named twice."""

import time
from types import SimpleNamespace

import pytest

from bert_hf.config.arguments import CorpusArguments
from bert_hf.errors import InputError
from bert_hf.preflight import inputs


def test_many_inputs_are_looked_at_in_a_moment(tmp_path, monkeypatch):
    """The beginnings of some; that all are there, and hold something, is known."""
    for number in range(500):
        (tmp_path / f"{number:03d}.txt").write_text("Some words. And more.\n\n" * 2)
    args = CorpusArguments(train_file=[f"{tmp_path}/*.txt"], cache_dir=str(tmp_path / "cache"))
    opened = []
    head = inputs._head
    monkeypatch.setattr(inputs, "_head", lambda source: opened.append(source) or head(source))
    begin = time.perf_counter()
    assert inputs.check_corpus_text(args, nsp=True, splits=True).startswith("text: 500 files, 23,000 bytes")
    assert time.perf_counter() - begin < 2
    assert 64 <= len(opened) < 130
    monkeypatch.setattr(inputs, "_head", lambda source: time.sleep(0.3) or (1, False))
    begin = time.perf_counter()
    inputs.check_corpus_text(args)
    assert time.perf_counter() - begin < 2
    (tmp_path / "400.txt").write_text("")
    with pytest.raises(InputError, match=r"400\.txt: the file is empty"):
        inputs.check_corpus_text(args)


def test_options_of_raw_text_are_taken_where_raw_text_is_held_out(monkeypatch):
    """A YAML file may hold what the corpus does not need: only the options of the command line are refused."""
    monkeypatch.setattr(inputs, "is_prepared", lambda files: files == ["corpus"])
    asked = {"text_column": "body", "sentence_per_line": False, "vocab_size": 100, "train_file": ["corpus"]}
    values = SimpleNamespace(**asked, validation_file=["held-out.jsonl"])
    inputs.refuse_unused_text_options({"text_column", "train_file"}, values)
    inputs.refuse_unused_text_options({"train_file"}, values)
    with pytest.raises(InputError, match="--vocab_size: it has no effect on a prepared corpus"):
        inputs.refuse_unused_text_options({"text_column", "vocab_size"}, values)


def test_text_is_not_trained_on_and_held_out(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("Some words. And more.\n\n" * 4)
    (tmp_path / "link.txt").symlink_to("a.txt")
    with pytest.raises(InputError, match=r"a\.txt: --train_file and --validation_file both name it"):
        inputs.check_corpus_text(
            CorpusArguments(train_file=[f"{tmp_path}/[ab].txt"], validation_file=[f"{tmp_path}/link.txt"])
        )
    args = CorpusArguments(train_file=[f"{tmp_path}/a.txt"], validation_file=[f"{tmp_path}/b.txt"])
    assert inputs.check_corpus_text(args).startswith("text: 1 files")
