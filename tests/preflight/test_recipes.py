"""When the checks of a recipe run, and what they print."""

import pytest

from bert_hf.config.arguments import ClassificationArguments, CorpusArguments, PreTrainingArguments
from bert_hf.config.parser import parse
from bert_hf.errors import InputError
from bert_hf.finetuning.classification import ClassificationTask
from bert_hf.preflight.checkpoints import read_model_config
from bert_hf.preflight.recipes import parse_finetuning


def test_a_checkpoint_below_a_folder_of_this_machine_has_to_be_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(InputError, match="runs/mien: no such file or folder; check the path"):
        read_model_config(None, "runs/mien", 8)
    assert read_model_config(None, "someone/mien", 8) is None  # on the Hub, perhaps


def test_what_is_on_the_hub_is_said_not_to_be_checked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.tsv").write_text("label\ttext\n" + "a\tone two\nb\tthree four\n" * 9)
    words = ["--model_name_or_path", "someone/bert", "--train_file", "rows.tsv", "--output_dir", "out", "--check"]
    assert parse_finetuning(ClassificationArguments, ClassificationTask, words) is None
    assert "  model: someone/bert is taken from the Hub (not checked)\n" in capsys.readouterr().out


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
