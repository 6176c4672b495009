"""Finds labelled texts in folders: a train, a validation and a test file, or a subfolder of text files for each class.

mail/train.csv  mail/test.csv              a file for each part
mail/train/spam/1.txt  mail/test/ham/7.txt     a folder for each part, a subfolder for each class
mail/spam/1.txt  mail/ham/2.txt            a subfolder for each class
"""

import re
from pathlib import Path

from bert_hf.data.text.input_files import kind_of
from bert_hf.errors import InputError
from bert_hf.finetuning.labelled.tables import KINDS

_PART = re.compile(r"(train|training|validation|valid|val|dev|test)(?![a-z])", re.IGNORECASE)
_PARTS = {"training": "train", "valid": "validation", "val": "validation", "dev": "validation"}
_TABLES = tuple(kind for kind in KINDS if kind != ".txt")


def files_of_parts(given: dict[str, list[str]]) -> dict[str, list[str]]:
    """The files of `train`, `validation` and `test`: those that are given, or those in the one folder that is given.

    Raises:
        InputError: the folder holds neither a train file nor subfolders.
    """
    if list(given) == ["train"] and len(given["train"]) == 1 and Path(given["train"][0]).is_dir():
        return _parts_in(Path(given["train"][0])) or given
    return given


def _parts_in(folder: Path) -> dict[str, list[str]]:
    """The files and folders in it by the part of which they have the name; {} where there are none."""
    found: dict[str, list[str]] = {}
    for path in _visible(folder):
        match = _PART.match(path.name)
        if match and (path.is_dir() or kind_of(path) in KINDS):
            name = match[1].lower()
            found.setdefault(_PARTS.get(name, name), []).append(str(path))
    if found and "train" not in found:
        remedy = "name the files by --train_file, --validation_file and --test_file"
        raise InputError("no train file in the folder", where=folder, remedy=remedy)
    return {part: found[part] for part in ("train", "validation", "test") if part in found}


def texts_by_folder(folder: Path) -> tuple[list[tuple[str, Path]], int]:
    """(class, file) of each text file in the subfolders, sorted, and the number of files that are not in one.

    Raises:
        InputError: there are no subfolders with text files.
    """
    classes = [path for path in _visible(folder) if path.is_dir()]
    found = [(path.name, text) for path in classes for text in sorted(path.rglob("*")) if _is_text_file(text)]
    if not found:
        remedy = f"name the files, e.g. '{folder}/*.csv', or give each class a subfolder of .txt files"
        raise InputError("a folder without train file and without text files by class", where=folder, remedy=remedy)
    return found, sum(path.is_file() for path in _visible(folder))


def _is_text_file(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".") and kind_of(path) not in _TABLES


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
