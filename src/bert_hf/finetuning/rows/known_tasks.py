"""Table of known tasks (GLUE, SMS spam): their data, columns, labels and their order, metric and submission files.

A task is one entry of `TASKS`. `--task mrpc --data_dir FOLDER` reads the benchmark's own files: FOLDER holds
`train.tsv`, `dev.tsv` and `test.tsv` (MNLI: `dev_matched.tsv` and three more), or folders named as in the benchmark
(`FOLDER/MRPC/train.tsv`); each may be compressed (.xz, .gz). The files are tab-separated without quoting: a lone quote
is part of a text. Test files have no labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bert_hf.config.files import check_input_file, write_durably
from bert_hf.console import logger
from bert_hf.data.text.readers import read_lines
from bert_hf.data.text.tables import Row
from bert_hf.errors import InputError
from bert_hf.finetuning.metrics.classification import CORRELATION
from bert_hf.finetuning.rows.labelled_texts import Columns, LabelledTexts, as_number, labelled_rows

_SPLITS = {"train": "train", "validation": "validation", "test": "test"}
_MNLI_SPLITS = {
    "train": "train",
    "validation": "validation_matched",
    "validation_mm": "validation_mismatched",
    "test": "test_matched",
    "test_mm": "test_mismatched",
}
SUBMISSION = "submission"  # folder in the output folder


@dataclass(frozen=True)
class TaskData:
    """A known task: where its data are, their columns and labels, its metrics and its submission files."""

    hub_id: str  # where no file is given
    columns: tuple[str, str | None, str]  # text, second text and label
    labels: tuple[str, ...]  # by id; of two, the second is the positive class; empty for regression
    config: str | None = None  # of the dataset on the Hub
    metrics: tuple[str, ...] = ()  # the benchmark's, the first selects a model; else the usual ones
    splits: dict[str, str] = field(default_factory=lambda: _SPLITS)  # parts, and the name of each on the Hub
    benchmark: str | None = None  # its name for folder and submission file; None: nothing is submitted
    file_columns: tuple[str, str | None, str] | None = None  # in the benchmark's files; None: there are none
    file_header: tuple[str, ...] = ()  # of labelled files that have none
    incomplete_rows: bool = False  # the labelled files, as distributed, have some rows with too few fields
    labels_are_ids: bool = False  # in the benchmark's files and its submission files; else names

    @property
    def regression(self) -> bool:
        """Return whether labels are numbers."""
        return not self.labels

    @property
    def submissions(self) -> dict[str, str]:
        """Return the submission file of each test part: {"test": "MNLI-m.tsv", "test_mm": "MNLI-mm.tsv"}."""
        if self.benchmark is None:
            return {}
        if "test_mm" in self.splits:
            return {"test": f"{self.benchmark}-m.tsv", "test_mm": f"{self.benchmark}-mm.tsv"}
        return {"test": f"{self.benchmark}.tsv"}


def _glue(config: str, name: str, columns: tuple[str, str | None, str], labels: tuple[str, ...], **more) -> TaskData:
    """Return a task of GLUE, whose files have the columns of the Hub unless `more` says otherwise."""
    return TaskData("nyu-mll/glue", columns, labels, config, benchmark=name, **{"file_columns": columns, **more})


_ACCURACY, _ACCURACY_AND_F1 = ("accuracy",), ("combined_score", "accuracy", "f1")
_PAIR = ("sentence1", "sentence2", "label")

TASKS = {
    # One sentence
    "cola": _glue(
        "cola", "CoLA", ("sentence", None, "label"), ("unacceptable", "acceptable"), metrics=("matthews_correlation",),
        file_header=("source", "label", "original_label", "sentence"), labels_are_ids=True,
    ),
    "sst2": _glue(
        "sst2", "SST-2", ("sentence", None, "label"), ("negative", "positive"),
        metrics=_ACCURACY, labels_are_ids=True,
    ),
    # Similarity and paraphrase
    "mrpc": _glue(
        "mrpc", "MRPC", _PAIR, ("not_equivalent", "equivalent"), metrics=_ACCURACY_AND_F1,
        file_columns=("#1 String", "#2 String", "Quality"), labels_are_ids=True,
    ),
    "qqp": _glue(
        "qqp", "QQP", ("question1", "question2", "label"), ("not_duplicate", "duplicate"), metrics=_ACCURACY_AND_F1,
        file_columns=("question1", "question2", "is_duplicate"), incomplete_rows=True, labels_are_ids=True,
    ),
    "stsb": _glue(
        "stsb", "STS-B", _PAIR, (), metrics=CORRELATION,
        file_columns=("sentence1", "sentence2", "score"),
    ),
    # Inference
    "mnli": _glue(
        "mnli", "MNLI", ("premise", "hypothesis", "label"), ("entailment", "neutral", "contradiction"),
        metrics=_ACCURACY, splits=_MNLI_SPLITS, file_columns=("sentence1", "sentence2", "gold_label"),
    ),
    "qnli": _glue(
        "qnli", "QNLI", ("question", "sentence", "label"), ("entailment", "not_entailment"), metrics=_ACCURACY
    ),
    "rte": _glue("rte", "RTE", _PAIR, ("entailment", "not_entailment"), metrics=_ACCURACY),
    # 65 of the 71 validation texts of WNLI are also training texts, 62 of these with the other label
    "wnli": _glue("wnli", "WNLI", _PAIR, ("not_entailment", "entailment"), metrics=_ACCURACY, labels_are_ids=True),
    # Almeida & Hidalgo 2011, "Contributions to the study of SMS spam filtering"
    "spam": TaskData("ucirvine/sms_spam", ("sms", None, "label"), ("ham", "spam")),
}  # fmt: skip

_POSITIVE_NAMES = (  # of two labels, without a task
    "spam", "1", "yes", "true", "positive", "pos",
    "ja", "oui", "sí", "si", "sim", "tak", "evet", "да", "positiv", "positif", "positivo",
)  # fmt: skip


def order_labels(counts: Mapping[str, int], task: str | None = None) -> tuple[str, ...]:
    """Return the label names by id: in the order of a known task, else sorted, with the positive one of two last.

    Numbers are sorted by value: of 0 and 1 the positive one is last, but 1 is not the positive one of 1 and 2. Of two
    other names the rare one is positive, if it has less than a third of the rows (`counts`: rows of each label).
    """
    if task is not None and counts.keys() <= set(TASKS[task].labels):
        return TASKS[task].labels
    ordered = sorted(counts)
    numbers = {name: number for name in ordered if (number := as_number(name)) is not None}
    if len(numbers) == len(ordered):
        return tuple(sorted(ordered, key=numbers.__getitem__))

    if len(ordered) == 2:
        is_rare = 2 * counts[ordered[0]] < counts[ordered[1]] and ordered[1].lower() not in _POSITIVE_NAMES
        if is_rare or ordered[0].lower() in _POSITIVE_NAMES:
            ordered.reverse()
    return tuple(ordered)


def read_task_folder(task: str, folder: str) -> dict[str, LabelledTexts]:
    """Return the rows of a task by part, from a folder with all of the benchmark's files."""
    data = TASKS[task]
    if data.file_columns is None:
        remedy = f"pass --train_file, or a --task of these: {', '.join(t for t in TASKS if TASKS[t].file_columns)}"
        raise InputError(f"task {task!r} has no folder of benchmark files", where="--data_dir", remedy=remedy)

    task_folder = Path(folder) / str(data.benchmark)
    parts = {}
    for part, split in data.splits.items():
        stem = split.replace("validation", "dev")  # otherwise the files are named as on the Hub
        path = _task_file(task_folder if task_folder.is_dir() else Path(folder), f"{stem}.tsv")
        labelled = not part.startswith("test")  # test files have no labels

        rows = _tsv_rows(path, data.file_header if labelled else (), data.incomplete_rows and labelled)
        if not rows:
            raise InputError("contains no rows", where=path, remedy="download the file again")

        text, pair, label = data.file_columns
        columns = Columns(text, pair, label if labelled else None)
        texts = labelled_rows(rows, columns, "needed" if labelled else "ignored")
        if labelled and not data.regression:
            if data.labels_are_ids:
                texts = texts.with_names(data.labels)
            texts.check_labels(data.labels)
        parts[part] = texts
    return parts


def _task_file(folder: Path, name: str) -> Path:
    """Return the file of this name, or the compressed one; an error where there is neither."""
    for suffix in (".xz", ".gz"):
        if (folder / f"{name}{suffix}").exists():
            name += suffix
    remedy = "add it (.xz and .gz are read too), or pass the files that you have as --train_file and --validation_file"
    return check_input_file(folder / name, remedy)


def _tsv_rows(path: Path, columns: Sequence[str], skip_incomplete: bool) -> list[Row]:
    """Return the rows of a tab-separated file; `columns`: its header, () if it has one. Log how many are skipped."""
    lines = [(number, line.split("\t")) for number, line in read_lines(path) if line]
    if not columns:
        columns = lines.pop(0)[1] if lines else ()

    rows = []
    for number, fields in lines:
        if len(fields) > len(columns) or (len(fields) < len(columns) and not skip_incomplete):
            what = f"{len(fields)} fields instead of {len(columns)}"
            raise InputError(what, where=path, line=number, remedy="download the file again, or fix the row")
        if len(fields) == len(columns):
            rows.append(Row(dict(zip(columns, fields, strict=True)), str(path), number))

    # tensorflow_datasets/text/glue.py skips them, too: "filter out corrupted rows"
    if len(rows) < len(lines):
        logger.info(f"{path}: skipped {len(lines) - len(rows):,} incomplete rows")
    return rows


def write_submission(folder: Path, task: str, part: str, predictions: np.ndarray) -> Path:
    """Write the benchmark's submission file of a test part: (N,) class ids or, of a regression, scores."""
    data = TASKS[task]
    if data.regression:
        values = [f"{score:.3f}" for score in predictions]
    elif data.labels_are_ids:
        values = [str(int(label)) for label in predictions]
    else:
        values = [data.labels[int(label)] for label in predictions]

    path = Path(folder) / SUBMISSION / data.submissions[part]
    path.parent.mkdir(exist_ok=True)
    lines = ["index\tprediction", *(f"{index}\t{value}" for index, value in enumerate(values))]
    write_durably(path, "\n".join(lines) + "\n")
    return path
