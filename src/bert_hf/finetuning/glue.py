"""Reads the files of the GLUE benchmark and of SICK as they are distributed, and writes GLUE's submission files.

`--task mrpc --data_dir FOLDER`: FOLDER holds `train.tsv`, `dev.tsv` and `test.tsv` (MNLI: `dev_matched.tsv` and three
more), or folders named as in the benchmark (`FOLDER/MRPC/train.tsv`); each may be compressed (.xz, .gz). The files are
tab-separated without quoting: a lone quote is part of a text. Those of CoLA with labels have no header, those of MRPC
begin with a byte-order mark, and test files have no labels.

    parts, notes = read_task_folder("mrpc", "glue/MRPC")
    write_submission(Path("runs/mrpc"), "mrpc", "test", predictions)        # runs/mrpc/MRPC.tsv
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bert_hf.config.files import check_input_file, write_durably
from bert_hf.data.text.readers import read_lines
from bert_hf.errors import InputError
from bert_hf.finetuning.known_tasks import TASKS
from bert_hf.finetuning.labelled.columns import Columns, as_number
from bert_hf.finetuning.labelled.texts import LabelledTexts

_SUFFIXES = (".tsv", ".tsv.xz", ".tsv.gz")
_SICK_FILES = ("SICK.txt", "SICK.txt.xz", "SICK.txt.gz")
_SICK_PARTS = {"TRAIN": "train", "TRIAL": "validation", "TEST": "test"}  # values of the column `part`

_REMEDY = "fetch the file again, or correct the row"


@dataclass(frozen=True)
class _Layout:
    """The columns of a task's files.

    Attributes:
        text, pair, label: names of those that are read.
        headerless: all columns of the labelled files, where these have no header.
        part: names the column that tells the parts apart, where all are in one file.
        has_incomplete_rows: the labelled files, as distributed, have some rows with too few fields.
    """

    text: str
    pair: str | None
    label: str
    headerless: tuple[str, ...] = ()
    part: str | None = None
    has_incomplete_rows: bool = False


_LAYOUTS = {
    "cola": _Layout("sentence", None, "label", headerless=("source", "label", "original_label", "sentence")),
    "sst2": _Layout("sentence", None, "label"),
    "mrpc": _Layout("#1 String", "#2 String", "Quality"),
    "qqp": _Layout("question1", "question2", "is_duplicate", has_incomplete_rows=True),
    "stsb": _Layout("sentence1", "sentence2", "score"),
    "mnli": _Layout("sentence1", "sentence2", "gold_label"),
    "qnli": _Layout("question", "sentence", "label"),
    "rte": _Layout("sentence1", "sentence2", "label"),
    "wnli": _Layout("sentence1", "sentence2", "label"),
    "sick": _Layout("sentence_A", "sentence_B", "entailment_label", part="SemEval_set"),
    "sick_relatedness": _Layout("sentence_A", "sentence_B", "relatedness_score", part="SemEval_set"),
}


# ---- folders


def read_task_folder(task: str, folder: str) -> tuple[dict[str, LabelledTexts], list[str]]:
    """The rows of a task by part, and lines about them that the user has to see.

    Args:
        task: a key of `TASKS` that is in GLUE, or of SICK.
        folder: of the benchmark's files, all of which must exist.

    Raises:
        InputError: the task has no such files; a file is missing; or a row is malformed (with file and line).
    """
    if task not in _LAYOUTS:
        remedy = f"use --train_file, or --task, one of: {', '.join(_LAYOUTS)}"
        raise InputError(f"task {task!r} has no folder of benchmark files", where="--data_dir", remedy=remedy)
    if not Path(folder).is_dir():
        raise InputError("no such folder", where=folder, remedy="check --data_dir")

    notes = [TASKS[task].note] if TASKS[task].note else []
    if _LAYOUTS[task].part is not None:
        return _read_parts_of_file(task, _existing([Path(folder) / name for name in _SICK_FILES])), notes

    result = {}
    for part in TASKS[task].splits:
        result[part], skipped = _read_part(task, part, _glue_file(task, part, Path(folder)))
        notes += skipped
    return result, notes


def _glue_file(task: str, part: str, folder: Path) -> Path:
    named = folder / str(TASKS[task].benchmark)
    folder = named if named.is_dir() else folder
    stem = TASKS[task].splits[part].replace("validation", "dev")  # otherwise the names are those of the Hub
    return _existing([folder / f"{stem}{suffix}" for suffix in _SUFFIXES])


def _existing(paths: list[Path]) -> Path:
    """The first of the paths that exists."""
    for path in paths:
        if path.exists():
            return check_input_file(path)
    remedy = "add it (also .xz, .gz), or name the files that you have by --train_file and --validation_file"
    raise InputError("no such file", where=paths[0], remedy=remedy)


# ---- files


def _read_part(task: str, part: str, path: Path) -> tuple[LabelledTexts, list[str]]:
    """The rows of one file of GLUE, and a line about those that were skipped."""
    layout = _LAYOUTS[task]
    labelled = not part.startswith("test")
    columns = layout.headerless if labelled else ()
    skipped: list[int] | None = [] if layout.has_incomplete_rows and labelled else None

    rows = _texts_of(task, path, _read_table(path, columns, skipped), labelled, header=not columns)
    if not rows.texts:
        raise InputError("no rows in it", where=path, remedy="fetch the file again")

    # Those who convert the benchmark skip them, too: "filter out corrupted rows" (tensorflow_datasets/text/glue.py)
    if not skipped:
        return rows, []
    return rows, [f"{path}: skipped {len(skipped):,} incomplete rows, the first in line {skipped[0]:,}"]


def _read_parts_of_file(task: str, path: Path) -> dict[str, LabelledTexts]:
    """The parts of SICK, which are in one file."""
    column = str(_LAYOUTS[task].part)
    parts: dict[str, list[tuple[int, dict[str, str]]]] = {part: [] for part in _SICK_PARTS.values()}
    for line, row in _read_table(path):
        part = _SICK_PARTS.get(_field(row, column, path))
        if part is None:
            what = f"{column} is {row[column]!r}, and none of {', '.join(_SICK_PARTS)}"
            raise InputError(what, where=path, line=line, remedy=_REMEDY)
        parts[part].append((line, row))

    empty = [part for part, rows in parts.items() if not rows]
    if empty:
        raise InputError(f"no {empty[0]} rows in it", where=path, remedy="fetch the file again")
    return {part: _texts_of(task, path, rows) for part, rows in parts.items()}


def _read_table(
    path: Path, columns: tuple[str, ...] = (), skipped: list[int] | None = None
) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, row by column) of a tab-separated file without quoting; empty lines are no rows.

    Args:
        columns: of a file without a header.
        skipped: takes the line numbers of rows with too few fields; None: these are errors, too.

    Raises:
        InputError: a row has another number of fields than the header.
    """
    for number, line in read_lines(path):
        fields = line.split("\t")
        if not line:
            continue

        if not columns:
            columns = tuple(fields)
        elif len(fields) == len(columns):
            yield number, dict(zip(columns, fields, strict=True))
        elif len(fields) < len(columns) and skipped is not None:
            skipped.append(number)
        else:
            what = f"{len(fields)} fields instead of {len(columns)}"
            raise InputError(what, where=path, line=number, remedy=_REMEDY)


# ---- rows


def _texts_of(
    task: str, path: Path, rows: Iterable[tuple[int, dict[str, str]]], labelled: bool = True, header: bool = True
) -> LabelledTexts:
    """The rows (line number, row by column) of a file as labelled texts.

    Args:
        labelled: whether they have labels. header: whether the file has one.

    Raises:
        InputError: a column is missing, or a label is none of the task's.
    """
    layout, regression = _LAYOUTS[task], TASKS[task].regression
    by_id = TASKS[task].labels_are_ids
    names = {str(number) if by_id else name: name for number, name in enumerate(TASKS[task].labels)}
    expected = "not a number" if regression else f"none of {', '.join(names)}"

    texts: list[str] = []
    pairs: list[str] = []
    labels: list[str] = []
    places: list[tuple[str, int]] = []
    for line, row in rows:
        texts.append(_field(row, layout.text, path).strip())
        if layout.pair is not None:
            pairs.append(_field(row, layout.pair, path).strip())
        if labelled:
            value = _field(row, layout.label, path)
            known = as_number(value) is not None if regression else value.lower() in names  # SICK has capitals
            if not known:
                what = f"{layout.label} is {value!r}, and {expected}"
                raise InputError(what, where=path, line=line, remedy=_REMEDY)
            labels.append(value if regression else names[value.lower()])
        places.append((str(path), line))

    return LabelledTexts(
        texts=texts,
        labels=labels if labelled else None,
        places=places,
        pairs=None if layout.pair is None else pairs,
        columns=Columns(layout.text, layout.pair, layout.label if labelled else None, header),
    )


def _field(row: dict[str, str], column: str, path: Path) -> str:
    if column not in row:
        remedy = f"its columns: {', '.join(row)}; check that --data_dir is the task's folder"
        raise InputError(f"no column {column!r}", where=path, line=1, remedy=remedy)
    return row[column]


# ---- submissions


def write_submission(folder: Path, task: str, part: str, predictions: np.ndarray) -> Path:
    """Writes the benchmark's submission file of a test part: a header, and a row for each test row, in their order.

    Args:
        folder: where to write; the file's name is the benchmark's (`TaskData.submissions`).
        predictions: (N,) class ids; or of a regression (N,) scores, which are clipped to the task's range.

    Returns:
        The file.
    """
    chosen = TASKS[task]
    if chosen.regression:
        low, high = chosen.score_range or (-math.inf, math.inf)
        values = [f"{score:.3f}" for score in np.clip(predictions, low, high)]
    elif chosen.labels_are_ids:
        values = [str(int(label)) for label in predictions]
    else:
        values = [chosen.labels[int(label)] for label in predictions]

    path = Path(folder) / chosen.submissions[part]
    write_numbered(path, values)
    return path


def write_numbered(path: Path, values: Iterable[str], places: Sequence[tuple[str, int]] = ()) -> None:
    """Writes a prediction a line, with its number from 0, below a header.

    Args:
        places: file and line of each row, for a third column: rows without text, or not drawn, have no number.
    """
    lines = ["index\tprediction", *(f"{index}\t{value}" for index, value in enumerate(values))]
    if places:
        named = ["place", *(f"{file}:{line}" for file, line in places)]
        lines = [f"{line}\t{place}" for line, place in zip(lines, named, strict=True)]
    write_durably(path, "\n".join(lines) + "\n")
