"""Every bad input of the catalogue is answered by its one line, exit code 2, and leaves nothing behind."""

import contextlib
import hashlib
import importlib.util
import os
import shlex
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from bad_inputs import CASES, ROWS, SHAPE, TEXT, VOCABULARY, Bad, Changed, Folder, Link, Pipe, lines, shape

RECIPES = Path(__file__).parents[1] / "recipes"


@lru_cache
def door(recipe: str):
    """`main` of a recipe."""
    spec = importlib.util.spec_from_file_location(recipe, RECIPES / f"{recipe}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def make_good(folder: Path) -> None:
    """What the bad inputs stand beside: text, rows, a vocabulary, a model, a checkpoint, a prepared corpus."""
    import torch
    from transformers import BertConfig

    from bert_hf import BertForPreTraining
    from bert_hf.corpus import prepare
    from bert_hf.sources import TextFile
    from bert_hf.tokenization import load_tokenizer, save_tokenizer

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
    """What lies in a folder: kind, time of change and content of everything (of folders the kind alone)."""
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
def standing_in(folder: Path, home: Path) -> Iterator[None]:
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
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
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
    """What the recipe says to a bad input: `2: error: …` where all is as it shall be, else what is not."""
    furnish(case, folder, good)
    home = folder.with_name(f"{folder.name}-home")
    home.mkdir()
    before = picture(folder)
    words = shlex.split(case.words) if isinstance(case.words, str) else list(case.words)
    main = door(case.recipe)
    with standing_in(folder, home), caught_stderr() as said, contextlib.redirect_stdout(None):
        try:
            code = main(words)
        except BaseException as error:
            code = f"{type(error).__name__}: {error}"
    after = picture(folder)
    if after != before:
        changed = sorted(name for name in {**before, **after} if before.get(name) != after.get(name))
        return f"{code}: {said[0]} and changed {', '.join(changed)}"
    return f"{code}: {said[0]}"


def run_catalogue(say=lambda *_: None) -> list[tuple[str, bool, str]]:
    """(name, whether it was answered as it shall be, the answer) of every case."""
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        good = Path(temporary) / "good"
        make_good(good)
        for number, case in enumerate(CASES):
            got = answer(case, Path(temporary) / str(number), good)
            results.append((case.name, got == f"2: error: {case.line}\n", got))
            say(*results[-1])
    return results
