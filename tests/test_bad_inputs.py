"""Every bad input of the catalogue is answered by its one line, exit code 2, and leaves nothing behind."""

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest
from bad_inputs import (
    CASES,
    CONTINUE,
    PRETRAIN,
    ROWS,
    SHAPE,
    TEXT,
    TUNE,
    VOCABULARY,
    Bad,
    Changed,
    Folder,
    Link,
    Pipe,
    lines,
    shape,
)  # fmt: skip
from helpers.recipe_runs import recipe
from transformers import TrainingArguments

RECIPES = Path(__file__).parents[1] / "recipes"
entry_point = lru_cache(recipe)  # `main` of a recipe


def make_good(folder: Path) -> None:
    """The good inputs next to the bad ones: text, rows, a vocabulary, a model, a checkpoint, a prepared corpus."""
    import torch
    from transformers import BertConfig

    from bert_hf import BertForPreTraining
    from bert_hf.data.corpus.prepare import prepare
    from bert_hf.data.text.sources import TextFile
    from bert_hf.data.text.tokenization import load_tokenizer, save_tokenizer

    folder.mkdir()
    content = {"text.txt": TEXT, "vocab.txt": lines(*VOCABULARY), "model.json": shape(), "rows.tsv": ROWS}
    for name, text in content.items():
        (folder / name).write_text(text)
    tokenizer = load_tokenizer(folder / "vocab.txt")
    torch.manual_seed(0)
    BertForPreTraining(BertConfig(**SHAPE)).save_pretrained(folder / "bert")
    save_tokenizer(tokenizer, folder / "bert")
    (folder / "other.txt").write_text(lines(*VOCABULARY, "more"))
    prepare([TextFile(str(folder / "text.txt"))], load_tokenizer(folder / "other.txt"), folder / "corpus")


def furnish(case: Bad, folder: Path, good: Path) -> None:
    """Makes the files of a case."""
    folder.mkdir()
    (folder / "good").symlink_to(good)
    for name, content in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Folder):
            path.mkdir()
        elif isinstance(content, Pipe):
            os.mkfifo(path)
        elif isinstance(content, Link):
            path.symlink_to(content.to)
        elif isinstance(content, Changed):
            shutil.copytree(good / content.of, path)
            furnish_over(path, content.files)
        elif content is not None:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


def furnish_over(folder: Path, files: dict) -> None:
    for name, content in files.items():
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def picture(folder: Path) -> dict:
    """Content of a folder: kind, time of change and content of everything (of folders the kind alone)."""
    seen = {}
    for place, folders, files in os.walk(folder):
        for path in (Path(place) / name for name in [*folders, *files]):
            state = path.lstat()
            kind = stat.S_IFMT(state.st_mode)
            plain = kind == stat.S_IFREG
            content = hashlib.sha256(path.read_bytes()).hexdigest() if plain else None
            seen[str(path.relative_to(folder))] = (kind, state.st_mtime_ns if plain else None, content)
    return seen


@contextlib.contextmanager
def working_in(folder: Path, home: Path) -> Iterator[None]:
    """Works in a folder, with a home elsewhere and no Hub."""
    before, here = dict(os.environ), os.getcwd()
    os.environ.update(HOME=str(home), HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        os.environ.pop(name, None)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def caught_stderr() -> Iterator[list[str]]:
    """All that goes to stderr, from Python and from libraries beneath it."""
    said: list[str] = []
    python, descriptor = sys.stderr, os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        try:
            yield said
        finally:
            sys.stderr.flush()
            sys.stderr = python
            os.dup2(descriptor, 2)
            os.close(descriptor)
            file.seek(0)
            said.append(file.read().decode("utf-8", "replace"))


def answer(case: Bad, folder: Path, good: Path) -> str:
    """The recipe's answer to a bad input: `2: error: …` if it behaves as expected, else what differs."""
    furnish(case, folder, good)
    home = folder.with_name(f"{folder.name}-home")
    home.mkdir()
    before = picture(folder)
    words = shlex.split(case.words) if isinstance(case.words, str) else list(case.words)
    main = entry_point(case.recipe)
    with working_in(folder, home), caught_stderr() as said, contextlib.redirect_stdout(None):
        try:
            code = main(words)
        except BaseException as error:
            code = f"{type(error).__name__}: {error}"
    after = picture(folder)
    if after != before:
        changed = sorted(name for name in {**before, **after} if before.get(name) != after.get(name))
        if not all(Path(name).parts[0] in case.leaves and name not in before for name in changed):
            return f"{code}: {said[0]} and changed {', '.join(changed)}"
    return f"{code}: {said[0]}"


def as_expected(case: Bad, got: str) -> bool:
    """Is it exit code 2, the one line, and nothing else? `<number>` matches any number (free disk, say)."""
    return re.fullmatch(re.escape(f"2: error: {case.line}\n").replace("<number>", r"[\d,.]+"), got) is not None


def run_catalogue(say=lambda *_: None) -> list[tuple[str, bool, str]]:
    """(name, whether the answer is as expected, the answer) of every case."""
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        good = Path(temporary) / "good"
        make_good(good)
        for number, case in enumerate(CASES):
            got = answer(case, Path(temporary) / str(number), good)
            results.append((case.name, as_expected(case, got), got))
            say(*results[-1])
    return results


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("catalogue") / "good"
    make_good(folder)
    return folder


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_answer_is_one_line(case, good, tmp_path, monkeypatch):
    """And what is not marked `later` is refused before a `TrainingArguments` is built, which joins the other ranks."""
    if not case.later:
        monkeypatch.setattr(TrainingArguments, "__post_init__", lambda self: pytest.fail("the ranks have joined"))
    got = answer(case, tmp_path / "here", good)
    assert as_expected(case, got), f"expected: error: {case.line}\ngot {got}"


def test_the_catalogue_is_large_and_says_each_thing_once():
    assert len(CASES) >= 250
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.recipe for case in CASES} >= {path.stem for path in RECIPES.glob("*.py")}
    assert all("; " in case.line for case in CASES)  # every line has a remedy


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("pretrain", f"{PRETRAIN} --train_file good/text.txt"),
        ("pretrain", "--config_name good/model.json --train_file good/corpus --max_seq_length 32 --output_dir out"),
        ("pretrain", f"{CONTINUE} --model_name_or_path good/bert"),
        ("pretrain", "--config_name good/model.json --max_seq_length 32 --output_dir out"),
        ("finetune_classification", f"{TUNE} --train_file good/rows.tsv --validation_file good/rows.tsv"),
        ("train_tokenizer", "--train_file good/text.txt --output_dir out"),
        ("prepare", "--train_file good/text.txt --tokenizer_name good/vocab.txt --output_dir out"),
        ("estimate", "--config_name good/model.json --max_steps 10 --max_seq_length 32"),
        ("split", "--train_file good/rows.tsv --output_dir out"),
    ],
)
def test_check_reports_what_is_good_and_writes_nothing(good, tmp_path, capsys, recipe, words):
    (tmp_path / "here").mkdir()
    (tmp_path / "here/good").symlink_to(good)
    main, before = entry_point(recipe), picture(tmp_path / "here")
    with working_in(tmp_path / "here", tmp_path / "home"):
        begin = time.perf_counter()
        assert main([*shlex.split(words), "--check", "true"]) == 0
        seconds = time.perf_counter() - begin
    said = capsys.readouterr().out.splitlines()
    names = [line.split(":")[0].strip() for line in said]
    assert "numbers" in names
    if recipe == "prepare":  # its own examination of the text follows
        names, said = names[:4], said[:4]
    else:
        assert seconds < 2
        assert not (tmp_path / "home").exists()
        assert picture(tmp_path / "here") == before
    assert len(set(names)) == len(names), names
    assert all(line.startswith("  ") and len(line) < 200 for line in said)


def test_check_refuses_as_a_run_does(good, tmp_path):
    case = Bad("x", "pretrain", f"{PRETRAIN} --check true --train_file a.txt", "")
    assert answer(case, tmp_path / "here", good).startswith("2: error: a.txt: no such file; ")
