"""Writes the folds of labelled rows as JSON lines: `fold-0/train.jsonl`, `validation.jsonl`, `test.jsonl`, and so on.

Each row has `text`, `label` and, where it is a pair, `text_pair`. `split.json` marks the folder as one of ours; it
names the files that the rows are from, the options, and the rows and classes of each part.
"""

import json
import os
import shutil
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import numpy as np

from bert_hf.config.split_arguments import SplitArguments
from bert_hf.data.checksums import file_checksum
from bert_hf.data.input_files import expand, is_url
from bert_hf.errors import InputError
from bert_hf.finetuning.columns import NamedColumns
from bert_hf.finetuning.datasets import read_labelled
from bert_hf.finetuning.labelled_texts import LabelledTexts
from bert_hf.finetuning.splits import folds, three_parts
from bert_hf.training.checkpointing import write_durably

MANIFEST = "split.json"
FOLD_FILES = (MANIFEST, "fold-*/train.jsonl", "fold-*/validation.jsonl", "fold-*/test.jsonl")
TEST_PERCENTAGE = 20.0  # of one split
_SHOWN_CLASSES = 8  # columns of the table
_TEMPORARY = ".tmp"  # ends the names of folders that are being written


def read_classes(asked: SplitArguments) -> LabelledTexts:
    """The rows that are to be split.

    Raises:
        InputError: no file, no rows, or rows of one class only.
    """
    if not asked.train_file:
        raise InputError("no data are named", where="--train_file", remedy="give files of labelled rows")
    rows = read_labelled(
        asked.train_file, NamedColumns(asked.text_column, asked.text_pair_column, asked.label_column), asked.encoding
    )
    if len(set(rows.labels)) < 2:
        remedy = "give rows of two labels or more"
        raise InputError(f"only one label: {rows.labels[0]}", where=rows.places[0][0], remedy=remedy)
    return rows


def make_folds(rows: LabelledTexts, groups: np.ndarray, asked: SplitArguments) -> list[dict[str, LabelledTexts]]:
    """`train`, `validation` and `test` of each fold, or of the one split.

    Args:
        groups: (N,) of near-duplicates.

    Raises:
        InputError: a class has too few rows.
    """
    if asked.folds > 1:
        return folds(rows, asked.folds, asked.split_seed, asked.validation_split_percentage, groups=groups)
    percentage = asked.test_split_percentage or TEST_PERCENTAGE
    return [three_parts(rows, asked.validation_split_percentage, percentage, asked.split_seed, groups=groups)]


def write_folds(folder: Path, made: list[dict[str, LabelledTexts]], asked: SplitArguments) -> None:
    """Writes all files. Killed while it writes, it leaves a folder that --overwrite_output_dir empties."""
    for old in [*folder.glob("fold-*" + _TEMPORARY), *_empty_folders(folder)]:
        shutil.rmtree(old)
    folder.mkdir(parents=True, exist_ok=True)

    # Whole under another name first, then the manifest, then the names
    for number, parts in enumerate(made):
        temporary = folder / f"fold-{number}{_TEMPORARY}"
        temporary.mkdir()
        for name, rows in parts.items():
            (temporary / f"{name}.jsonl").write_bytes(b"".join(_line(rows, row) for row in range(len(rows))))

    write_durably(folder / MANIFEST, json.dumps(_manifest(made, asked), indent=1, ensure_ascii=False) + "\n")
    for number in range(len(made)):
        os.replace(folder / f"fold-{number}{_TEMPORARY}", folder / f"fold-{number}")


def _empty_folders(folder: Path) -> list[Path]:
    """Folders of an earlier split whose files were removed."""
    return [path for path in folder.glob("fold-*") if path.is_dir() and not any(path.iterdir())]


def _line(rows: LabelledTexts, number: int) -> bytes:
    row = {"text": rows.texts[number], "label": rows.labels[number]}
    if rows.pairs is not None:
        row = {"text": rows.texts[number], "text_pair": rows.pairs[number], "label": rows.labels[number]}
    try:
        return (json.dumps(row, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can hold and UTF-8 cannot
        return (json.dumps(row) + "\n").encode()


def _manifest(made: list[dict[str, LabelledTexts]], asked: SplitArguments) -> dict:
    files = expand(asked.train_file or [])
    checksums = {Path(path).name: None if is_url(path) else file_checksum(path) for path in files}
    folds = [
        {
            name: {"rows": len(rows), "classes": dict(sorted(Counter(rows.labels).items()))}
            for name, rows in parts.items()
        }
        for parts in made
    ]
    options = {
        "validation_split_percentage": asked.validation_split_percentage,
        "test_split_percentage": asked.test_split_percentage,
        "split_seed": asked.split_seed,
    }
    return {"bert_hf": version("bert-hf"), "files": checksums, "options": options, "folds": folds}


def table_of_parts(made: list[dict[str, LabelledTexts]]) -> str:
    """Rows of each part of each fold, and of each class; of many classes, how many a part has."""
    classes = sorted({label for rows in made[0].values() for label in rows.labels})
    few = len(classes) <= _SHOWN_CLASSES
    table = [["", "", "rows", *(classes if few else ["classes"])]]
    for number, parts in enumerate(made):
        for name, rows in parts.items():
            counts = Counter(rows.labels)
            cells = [f"{counts[label]:,}" for label in classes] if few else [f"{len(counts):,}"]
            table.append([f"fold-{number}" if name == "train" else "", name, f"{len(rows):,}", *cells])

    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for first, second, *cells in table:
        figures = [cell.rjust(width) for cell, width in zip(cells, widths[2:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), second.ljust(widths[1]), *figures]))
    return "\n".join(lines)
