"""Reads the training, validation and test rows of a classification task, and splits off the parts that are missing."""

from bert_hf.config.finetuning_arguments import ClassificationArguments
from bert_hf.data.text.sources import hub_rows
from bert_hf.errors import InputError, check_known, did_you_mean
from bert_hf.finetuning.known_tasks import TASKS, order_labels, read_task_folder
from bert_hf.finetuning.labelled_texts import (
    CLASSES,
    REGRESSION,
    LabelledTexts,
    NamedColumns,
    files_of_parts,
    labelled_rows,
    read_labelled,
    without_empty,
)
from bert_hf.finetuning.metrics import ClassificationMetric
from bert_hf.finetuning.near_duplicates import describe_overlap
from bert_hf.finetuning.splits import split_off, three_parts


def is_regression(task_args: ClassificationArguments) -> bool:
    """Whether labels are numbers: by --problem_type, else by the task."""
    if task_args.problem_type is not None:
        return task_args.problem_type == REGRESSION
    return task_args.task in TASKS and TASKS[task_args.task].regression


def source_of(task_args: ClassificationArguments) -> str:
    """Where the rows come from, in words.

    Raises:
        InputError: nothing is named, the task is unknown, or --data_dir has no task.
    """
    if task_args.task is not None:
        check_known(task_args.task, TASKS, f"unknown task {task_args.task!r}", "--task")
    if task_args.data_dir is not None and (task_args.task is None or task_args.train_file):
        what = "it is the folder of a known task's own files"
        raise InputError(what, where="--data_dir", remedy="pass --task and --data_dir, or --train_file")
    if task_args.train_file:
        return "files"

    hub_id = TASKS[task_args.task].hub_id if task_args.task else None
    source = task_args.data_dir or task_args.dataset_name or hub_id
    if source is None:
        raise InputError("no data", where="--train_file", remedy="pass --train_file, --dataset_name or --task")
    return source


def class_names(parts: dict[str, LabelledTexts], task_args: ClassificationArguments) -> tuple[str, ...]:
    """Class names by id; empty for a regression."""
    return () if is_regression(task_args) else order_labels(set(parts["train"].class_names()), task_args.task)


# ---- the parts that are given


def read_given_parts(task_args: ClassificationArguments) -> dict[str, LabelledTexts]:
    """The parts that files or a Hub dataset hold, checked; `notes` of the training rows say what is worth knowing.

    Raises:
        InputError: with file and line; no data named; one class only; another number of labels than the task has; or a
            label that training does not have.
    """
    source_of(task_args)
    parts = _read(task_args)
    if task_args.task is not None and TASKS[task_args.task].note:
        parts["train"].notes.append(TASKS[task_args.task].note)
    if is_regression(task_args):
        for rows in parts.values():
            if rows.labels is not None:
                rows.numbers()
        return parts

    parts["train"].classes()
    names = class_names(parts, task_args)
    task = TASKS[task_args.task] if task_args.task else None
    if task is not None and task.metric is not ClassificationMetric and len(names) != len(task.labels):
        what = f"{len(names)} labels; the task {task_args.task} has {len(task.labels)}: {', '.join(task.labels)}"
        raise InputError(what, where=parts["train"].file(), remedy="leave --task out, or give rows of its labels")
    for name, rows in parts.items():
        _check_labels(rows, names, name)
    return parts


def _read(task_args: ClassificationArguments) -> dict[str, LabelledTexts]:
    if task_args.data_dir is not None:
        return read_task_folder(str(task_args.task), task_args.data_dir)

    problem = REGRESSION if is_regression(task_args) else CLASSES if task_args.task else task_args.problem_type
    named = NamedColumns(task_args.text_column, task_args.text_pair_column, task_args.label_column, problem)
    parts: dict[str, LabelledTexts] = {}
    like = None
    if task_args.train_file:
        for part, files in files_of_parts(task_args.files()).items():
            parts[part] = read_labelled(files, named, task_args.encoding, like, needs_labels=part != "test")
            like = parts["train"].columns
        return parts

    task = TASKS[task_args.task] if task_args.task else None
    if task is not None:
        text, pair, label = task.columns
        named = NamedColumns(named.text or text, named.pair or pair, named.label or label, problem)
    splits = task.splits if task else {part: part for part in ("train", "validation", "test")}
    config = task_args.dataset_config_name or (task.config if task else None)
    rows = hub_rows(source_of(task_args), config, splits.values())
    for part, split in splits.items():
        if split not in rows:
            continue
        read = labelled_rows(rows[split], named, like, needs_labels=not part.startswith("test"))
        if task is not None and task.benchmark and part.startswith("test"):
            read.labels = None  # the Hub has -1, which is a number like others in a regression
        parts[part] = without_empty(read)
        like = parts["train"].columns
    return parts


def _check_labels(rows: LabelledTexts, labels: tuple[str, ...], name: str) -> None:
    """Refuses a label that training does not have."""
    known = set(labels)
    for number, label in enumerate(rows.labels or ()):
        if label not in known:
            where, line = rows.places[number] if rows.places else (name, None)
            near = did_you_mean(label, labels) or f"the labels there: {', '.join(labels[:10])}; "
            remedy = f"{near}correct or remove the row"
            raise InputError(f"label {label!r} is not in the training rows", where=where, line=line, remedy=remedy)


# ---- all parts


def read_all_parts(task_args: ClassificationArguments) -> dict[str, LabelledTexts]:
    """`train`, `validation` and `test`, and further parts of the task.

    Validation rows that are not given are split off the training rows, and so are test rows where neither are given: a
    run with validation rows alone is judged by these.

    Raises:
        InputError: see `read_given_parts`; or there are too few rows to split off.
    """
    parts = read_given_parts(task_args)
    train = parts["train"]
    if others := {name: rows.joined() for name, rows in parts.items() if name != "train"}:
        train.notes.append(describe_overlap(train.joined(), others))
    if "validation" in parts:
        return parts

    seed, regression = task_args.split_seed, is_regression(task_args)
    percentage = task_args.validation_split_percentage
    if "test" in parts:
        parts["train"], parts["validation"] = split_off(train, percentage, seed, regression)
    else:
        parts |= three_parts(train, percentage, task_args.test_split_percentage, seed, regression)
    parts["train"].notes = train.notes
    return {name: parts[name] for name in sorted(parts, key=("train", "validation", "test").index)}
