"""What the README says is so: every path is there, every command's flags parse, the tree is the house."""

import json
import re
import shlex
from pathlib import Path

import datasets
import pytest
from test_configs import FINETUNE, PRETRAIN

from bert_hf.config.arguments import (
    CorpusArguments,
    ExampleArguments,
    FolderArguments,
    PrepareArguments,
    TokenizerArguments,
    parse,
)

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^    (accelerate launch .+)$", README, re.MULTILINE)


def test_it_is_short():
    assert len(README.splitlines()) <= 200


DOCUMENTS = ["README.md", "CONTRIBUTING.md", "configs/README.md"]
DOCUMENTS += [f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_and_paths_exist(name):
    text = (ROOT / name).read_text()
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert ((ROOT / name).parent / target).exists(), target
    for path in re.findall(r"\b(?:configs|recipes|tests|benchmarks|src)/[\w./-]+\.\w+", text):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("command", re.findall(r"^    python (recipes/.+)$", README, re.MULTILINE))
def test_plain_commands_parse(command):
    script, *flags = shlex.split(command)
    assert (ROOT / script).is_file()
    work = (PrepareArguments, ExampleArguments) if "prepare" in script else ()
    parse((TokenizerArguments, CorpusArguments, FolderArguments, *work), flags)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command):
    words = shlex.split(command)
    machine, script, flags = words[3], words[4], words[5:]
    assert words[2] == "--config_file"
    assert (ROOT / machine).is_file()
    assert (ROOT / script).is_file()
    parse(PRETRAIN if "pretrain" in script else FINETUNE, flags)


def test_there_are_commands():
    assert len(COMMANDS) >= 3


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z]+)\b", README)) - {"it"} <= targets


def test_the_tree_names_every_room_and_door():
    for path in [*(ROOT / "src/bert_hf").rglob("*.py"), *(ROOT / "recipes").glob("*.py")]:
        if path.stem != "__init__":
            assert re.search(rf"\b{path.stem}\.py", README), path.name


def test_the_lines_of_python_run(tmp_path, monkeypatch, documents):
    """As they stand there, but for their size."""
    code = re.search(r"^```python\n(.+?)^```", README, re.MULTILINE | re.DOTALL)[1]
    assert len([line for line in code.splitlines() if line and "import" not in line]) <= 10
    smaller = [("8192", "300"), ("256", "32"), ("1024", "64"), ("4000", "2")]
    for size, small in smaller:
        assert code.count(size) == 1
        code = code.replace(size, small)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = [json.dumps({"text": text, "url": "elsewhere"}) for text in 3 * documents]
    (tmp_path / "corpus.jsonl").write_text("\n".join(rows))
    names = {}
    exec(code, names)
    assert names["trainer"].state.global_step == 2
    assert {"eval_mlm_loss", "eval_nsp_accuracy"} <= names["trainer"].evaluate().keys()
