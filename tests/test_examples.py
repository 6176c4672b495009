"""The examples in launch/ run, and give the documented result."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.corpora import everything

from bert_hf.data.corpus.prepare import prepare
from bert_hf.data.text.sources import TextFile
from bert_hf.data.text.tokenization import load_tokenizer, save_tokenizer, train_tokenizer

ROOT = Path(__file__).parents[1]


def test_two_parts_under_datatrove_are_the_folder_of_one_process(documents, tmp_path):
    pytest.importorskip("datatrove")
    files = [str(tmp_path / f"{number}.txt") for number in range(4)]
    for number, file in enumerate(files):
        Path(file).write_text("\n\n".join(documents[number::4]))
    save_tokenizer(train_tokenizer(documents, vocab_size=200), tmp_path / "tokenizer")
    example = ROOT / "launch/prepare_with_datatrove.py"
    command = [sys.executable, str(example), str(tmp_path / "tokenizer"), str(tmp_path / "parts"), *files]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "2/2 tasks completed" in done.stderr
    prepare([TextFile(file) for file in files], load_tokenizer(tmp_path / "tokenizer"), tmp_path / "one")
    assert everything(tmp_path / "parts") == everything(tmp_path / "one")
