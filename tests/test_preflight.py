"""Checks that the catalogue of bad inputs (test_bad_inputs.py) cannot make: full disks, many inputs, model files."""

import errno
import os
import re
import time
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
from bad_inputs import shape
from helpers.argument_classes import FINETUNING_RECIPES

from bert_hf import preflight
from bert_hf.config.arguments import (
    ClassificationArguments,
    CorpusArguments,
    OutputArguments,
    PrepareArguments,
    PreTrainingArguments,
)
from bert_hf.config.parser import parse
from bert_hf.config.split_arguments import SplitArguments
from bert_hf.config.value_ranges import Range, check_ranges
from bert_hf.errors import InputError
from bert_hf.features.arguments import FeatureArguments
from bert_hf.finetuning.classification import ClassificationTask
from bert_hf.finetuning.study.arguments import StudyArguments
from bert_hf.models.config_file import read_checked_config
from bert_hf.preflight import ESTIMATING_ARGUMENTS
from bert_hf.probe.arguments import ProbeArguments

ROOT = Path(__file__).parents[1]


def run(tmp_path, **changes):
    asked = {"save_strategy": "steps", "save_steps": None, "save_minutes": 15.0, "output_dir": str(tmp_path / "out")}
    return SimpleNamespace(**{**asked, **changes})


@pytest.mark.parametrize("path", sorted((ROOT / "configs/model").glob("*.json")), ids=lambda path: path.stem)
def test_our_own_shapes_are_good(path):
    assert read_checked_config(path, 512).max_position_embeddings == 512


def test_two_checkpoints_need_space(tmp_path, monkeypatch):
    config = read_checked_config(ROOT / "configs/model/base.json")  # 110 M parameters × 12 bytes
    monkeypatch.setattr(preflight, "free_disk", lambda folder: 3e9)
    assert list(preflight.check_disk_space(config, run(tmp_path)))[1] == "disk: 2.64 GB for checkpoints, 3.00 GB free"
    monkeypatch.setattr(preflight, "free_disk", lambda folder: 2e9)
    with pytest.raises(InputError, match=r"out: two checkpoints take 2\.64 GB, and 2\.00 GB are free"):
        list(preflight.check_disk_space(config, run(tmp_path)))
    (tmp_path / "out").mkdir()
    (tmp_path / "out/run.json").write_text("{}")  # a resumed run has one already
    assert "1.32 GB" in list(preflight.check_disk_space(config, run(tmp_path)))[1]
    for never in ({"save_strategy": "no"}, {"save_strategy": None, "save_minutes": 0}):  # the model alone
        assert "0.44 GB" in list(preflight.check_disk_space(config, run(tmp_path, **never)))[1]


@pytest.mark.parametrize("call", ["fsync"])
def test_a_disk_that_takes_no_save_is_refused_and_nothing_stays(tmp_path, monkeypatch, call):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(preflight.os, call, refuse)
    with pytest.raises(InputError, match=r"out: cannot be written: No space left on device; give another --"):
        preflight.check_writable(str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_rights_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot be written: Permission denied"):
        preflight.check_writable(str(tmp_path / "out"))


def test_the_folder_is_tried_where_it_is_and_left_as_it_was(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    assert preflight.check_writable(str(tmp_path)) == f"output: {tmp_path} can be written"
    preflight.check_writable(str(tmp_path / "a/b/c"))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_many_inputs_are_looked_at_in_a_moment(tmp_path, monkeypatch):
    """The beginnings of some; that all are there, and hold something, is known."""
    for number in range(500):
        (tmp_path / f"{number:03d}.txt").write_text("Some words. And more.\n\n" * 2)
    args = CorpusArguments(train_file=[f"{tmp_path}/*.txt"], cache_dir=str(tmp_path / "cache"))
    opened = []
    head = preflight._head
    monkeypatch.setattr(preflight, "_head", lambda source: opened.append(source) or head(source))
    begin = time.perf_counter()
    assert preflight.check_corpus_text(args, nsp=True, splits=True).startswith("text: 500 files, 23,000 bytes")
    assert time.perf_counter() - begin < 2
    assert 64 <= len(opened) < 130
    monkeypatch.setattr(preflight, "_head", lambda source: time.sleep(0.3) or (1, False))
    begin = time.perf_counter()
    preflight.check_corpus_text(args)
    assert time.perf_counter() - begin < 2
    (tmp_path / "400.txt").write_text("")
    with pytest.raises(InputError, match=r"400\.txt: the file is empty"):
        preflight.check_corpus_text(args)


def test_a_range_knows_its_ends():
    assert 0 in Range(0, 1)
    assert 1 in Range(0, 1)
    assert 0 not in Range(0, 1, above=True)
    assert 1 not in Range(0, 1, below=True)
    for value in (float("nan"), float("inf"), -float("inf")):
        assert value not in Range(-1e300, 1e300)
    assert str(Range(0, 1, above=True, below=True)) == "above 0 and below 1"
    assert check_ranges(SimpleNamespace(seed=1, dropout=None, max_steps=-1, unknown=-7)) == "numbers: 1 checked"


def test_every_number_of_ours_has_a_range():
    classes = {cls for group in FINETUNING_RECIPES.values() for cls in group} | {*ESTIMATING_ARGUMENTS, SplitArguments}
    classes |= {PrepareArguments, OutputArguments, FeatureArguments, ProbeArguments, StudyArguments}
    numbers = {f.name for cls in classes for f in fields(cls) if re.search(r"\b(int|float)\b", str(f.type))}
    assert len(numbers) > 70
    for name in sorted(numbers):
        with pytest.raises(InputError, match=f"--{name}: nan is out of range"):
            check_ranges(SimpleNamespace(**{name: float("nan")}))


def test_a_checkpoint_below_a_folder_of_this_machine_has_to_be_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(InputError, match="runs/mien: no such file or folder; check the path"):
        preflight.read_model_config(None, "runs/mien", 8)
    assert preflight.read_model_config(None, "someone/mien", 8) is None  # on the Hub, perhaps


def test_what_is_on_the_hub_is_said_not_to_be_checked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.tsv").write_text("label\ttext\n" + "a\tone two\nb\tthree four\n" * 9)
    words = ["--model_name_or_path", "someone/bert", "--train_file", "rows.tsv", "--output_dir", "out", "--check"]
    assert preflight.parse_finetuning(ClassificationArguments, ClassificationTask, words) is None
    assert "  model: someone/bert is taken from the Hub (not checked)\n" in capsys.readouterr().out


def test_text_is_not_trained_on_and_held_out(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("Some words. And more.\n\n" * 4)
    (tmp_path / "link.txt").symlink_to("a.txt")
    with pytest.raises(InputError, match=r"a\.txt: --train_file and --validation_file both name it"):
        preflight.check_corpus_text(
            CorpusArguments(train_file=[f"{tmp_path}/[ab].txt"], validation_file=[f"{tmp_path}/link.txt"])
        )
    args = CorpusArguments(train_file=[f"{tmp_path}/a.txt"], validation_file=[f"{tmp_path}/b.txt"])
    assert preflight.check_corpus_text(args).startswith("text: 1 files")


def test_preflight_comes_before_the_ranks_join(tmp_path, monkeypatch, capsys):
    """Preflight sees a run's values as they were given, and `parse` builds nothing of it before, nor with --check."""
    order = []
    monkeypatch.setattr(PreTrainingArguments, "__post_init__", lambda self: order.append("joined"))

    def looked(text, args):
        order.append((type(text), args.max_steps, args.output_dir))
        yield "text: good"

    words = ["--max_steps", "3", "--output_dir", str(tmp_path)]
    assert len(parse((CorpusArguments, PreTrainingArguments), words, preflight=looked)) == 2
    assert order == [(CorpusArguments, 3, str(tmp_path)), "joined"]
    assert capsys.readouterr().out == ""
    assert parse((CorpusArguments, PreTrainingArguments), [*words, "--check"], preflight=looked) is None
    assert order[2:] == [(CorpusArguments, 3, str(tmp_path))]
    assert capsys.readouterr().out == "  numbers: 26 checked\n  text: good\n"
    monkeypatch.setenv("RANK", "1")  # only rank 0 prints
    parse((CorpusArguments, PreTrainingArguments), [*words, "--check"], preflight=looked)
    assert capsys.readouterr().out == ""


def test_another_architecture_may_be_tuned(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(shape(model_type="roberta"))
    assert read_checked_config(path, bert_alone=False) is None
    with pytest.raises(InputError, match=r"config\.json:2: model_type is 'roberta', and not 'bert'"):
        read_checked_config(path)
