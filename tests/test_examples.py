"""The examples in launch/ run, and give the documented result."""

import runpy
from pathlib import Path

import pytest
from helpers.corpora import everything

from bert_hf.data.corpus.prepare import prepare
from bert_hf.data.text.sources import TextFile
from bert_hf.data.text.tokenization import load_tokenizer, save_tokenizer, train_tokenizer

ROOT = Path(__file__).parents[1]


def test_two_parts_under_datatrove_are_the_folder_of_one_process(documents, tmp_path, monkeypatch):
    """One part after the other in this process: starting processes takes longer than all else."""
    executor = pytest.importorskip("datatrove.executor").LocalPipelineExecutor
    initialize = executor.__init__
    monkeypatch.setattr(executor, "__init__", lambda *args, workers, **named: initialize(*args, workers=1, **named))
    files = [str(tmp_path / f"{number}.txt") for number in range(4)]
    for number, file in enumerate(files):
        Path(file).write_text("\n\n".join(documents[number::4]))
    save_tokenizer(train_tokenizer(documents, vocab_size=200), tmp_path / "tokenizer")
    example = runpy.run_path(str(ROOT / "launch/prepare_with_datatrove.py"))
    example["main"](str(tmp_path / "tokenizer"), str(tmp_path / "parts"), *files)
    prepare([TextFile(file) for file in files], load_tokenizer(tmp_path / "tokenizer"), tmp_path / "one")
    assert everything(tmp_path / "parts") == everything(tmp_path / "one")
