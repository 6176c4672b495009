"""Draws nested, stratified subsets of a fold's training rows.

For each fold there is one order of its training rows, and a subset of n rows is the first n of it. So a smaller subset
is part of a larger one, and all models and seeds are given the same rows.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from bert_hf.config.files import write_durably
from bert_hf.data.text.readers import read_rows
from bert_hf.errors import InputError
from bert_hf.finetuning.labelled.columns import as_number

MIN_PER_CLASS = 2  # rows of each class in any subset, where the class has as many
INNER_PARTS = 5  # of a subset, one of which validates while settings are searched


class TrainingSubsets:
    """The subsets of one fold's training rows.

    Args:
        path: JSON lines. fold: its number, in the names of the files that are written.
        sizes: rows of each subset.
        label_column: None: `label`.
        key: seeds of the order.

    Raises:
        InputError: no such column, a row without label, or a size that the rows do not allow.
    """

    def __init__(self, path: Path, fold: int, sizes: list[int], label_column: str | None, key: tuple[int, ...]):
        self.fold = fold
        self.rows = [row for _, row in read_rows(path)]
        self.strata = strata(_labels(path, label_column or "label"))

        least = least_rows(self.strata)
        for size in sizes:
            if not least <= size <= len(self.rows):
                what = f"{size} rows cannot be drawn from {len(self.rows):,} with {MIN_PER_CLASS} of each class"
                remedy = f"give sizes from {least} to {len(self.rows)}, or all"
                raise InputError(what, where=path, remedy=remedy)
        self.order = nested_order(self.strata, max(sizes), key)

    def files(self, root: Path, size: int, seed: int | None = None) -> dict[str, Path]:
        """Training and validation file of a subset, below the study's folder.

        Nothing outside the subset is read. Without a seed all of it is trained on, nothing is selected, and the recipe
        gets the same rows as validation rows, which it asks for. With a seed (settings are searched) a fifth of the
        subset validates: the one numbered by the seed modulo 5.
        """
        folder = root / f"subsets/fold-{self.fold}"
        whole = folder / f"{size}.jsonl"
        if seed is None:
            return {"train": whole, "validation": whole}
        part = seed % INNER_PARTS
        return {name: folder / f"{size}-{name}-{part}.jsonl" for name in ("train", "validation")}

    def write(self, root: Path, size: int, seed: int | None = None) -> None:
        """Writes the files of `files`, where they are not there already."""
        rows = np.sort(self.order[:size])  # in the order of the training file
        paths = self.files(root, size, seed)
        if seed is None:
            self._write(paths["train"], rows)
            return

        held_out = inner_part(self.strata[rows], seed % INNER_PARTS)
        self._write(paths["train"], rows[~held_out])
        self._write(paths["validation"], rows[held_out])

    def _write(self, path: Path, rows: np.ndarray) -> None:
        text = "".join(json.dumps(self.rows[row], ensure_ascii=False) + "\n" for row in rows)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, text)


def _labels(path: Path, column: str) -> list[Any]:
    labels = []
    for line, row in read_rows(path):
        if row.get(column) is None:
            names = ", ".join(row)
            remedy = f"give --label_column, one of: {names}"
            raise InputError(f"the row has no {column!r}", where=path, line=line, remedy=remedy)
        labels.append(row[column])
    return labels


# ---- which rows


def strata(labels: list[Any]) -> np.ndarray:
    """(N,) number of each row's class; all 0 where the labels are no classes: lists, or numbers with a fraction."""
    if any(isinstance(label, list | dict) or _has_fraction(label) for label in labels):
        return np.zeros(len(labels), dtype=np.int64)
    return np.unique([str(label) for label in labels], return_inverse=True)[1]


def _has_fraction(label: Any) -> bool:
    number = as_number(label)
    return number is not None and not number.is_integer()


def least_rows(classes: np.ndarray) -> int:
    """Rows of the smallest subset: `MIN_PER_CLASS` of each class (or all that it has), and one for each inner part."""
    return max(INNER_PARTS, int(np.minimum(np.bincount(classes), MIN_PER_CLASS).sum()))


def nested_order(classes: np.ndarray, length: int, key: tuple[int, ...]) -> np.ndarray:
    """(length,) rows in the order in which subsets take them up.

    The rows of a class are shuffled. First come `MIN_PER_CLASS` rows of each class, then always one of the class that
    is furthest below its share. With classes a a a a a a b b:

        a b a b | a a a a      the first four rows hold two of each class; from then on a, until 6 : 2 is reached

    Args:
        classes: (N,) class numbers from 0.
        key: seeds.
    """
    counts = np.bincount(classes)
    shuffled = np.random.default_rng(key).permutation(len(classes))
    waiting = [shuffled[classes[shuffled] == number] for number in range(len(counts))]

    # The class of each place of the order
    turns = [int(number) for turn in range(MIN_PER_CLASS) for number in np.flatnonzero(counts > turn)]
    taken = np.bincount(turns, minlength=len(counts))
    for place in range(len(turns), length):
        missing = np.where(taken < counts, counts * ((place + 1) / len(classes)) - taken, -np.inf)
        number = int(np.argmax(missing))
        taken[number] += 1
        turns.append(number)

    # Its rows, in turn
    following = [iter(rows) for rows in waiting]
    return np.array([next(following[number]) for number in turns[:length]])


def inner_part(classes: np.ndarray, part: int) -> np.ndarray:
    """(n,) True for the rows of a subset that validate: every fifth one when the rows are sorted by class.

    Each class keeps at least one row to train on: the only row of a class is not counted and never validates.
    """
    ordered = np.argsort(classes, kind="stable")
    ordered = ordered[np.bincount(classes)[classes[ordered]] > 1]
    held_out = np.zeros(len(classes), dtype=bool)
    held_out[ordered[part % max(1, len(ordered)) :: INNER_PARTS]] = True  # fewer rows than parts: one of them
    return held_out
