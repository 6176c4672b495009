"""Reads the training, validation and test rows of a classification task, and splits off the parts that are missing."""

from dataclasses import replace

from bert_hf.config.finetuning_arguments import ClassificationArguments
from bert_hf.errors import InputError, check_known, did_you_mean
from bert_hf.finetuning.glue import read_task_folder
from bert_hf.finetuning.known_tasks import TASKS, UNNAMED, order_labels
from bert_hf.finetuning.labelled.columns import CLASSES, REGRESSION, NamedColumns
from bert_hf.finetuning.labelled.datasets import read_hub, read_parts
from bert_hf.finetuning.labelled.folders import files_of_parts
from bert_hf.finetuning.labelled.texts import LabelledTexts
from bert_hf.finetuning.metrics import ClassificationMetric
from bert_hf.finetuning.near_duplicates import describe_overlap
from bert_hf.finetuning.splits import split_off, three_parts

# Options without effect on the files of --data_dir, whose layout is fixed
_NOT_IN_DATA_DIR = ("dataset_name", "dataset_config_name", "encoding")
_NOT_IN_DATA_DIR += ("text_column", "text_pair_column", "label_column")


def is_regression(task_args: ClassificationArguments) -> bool:
    """Whether labels are numbers: by --problem_type, else by the task."""
    if task_args.problem_type is not None:
        return task_args.problem_type == REGRESSION
    return task_args.task in TASKS and TASKS[task_args.task].regression


def source_of(task_args: ClassificationArguments) -> str:
    """Where the rows come from, in words.

    Raises:
        InputError: nothing is named, the task is unknown, or options contradict each other.
    """
    if task_args.task is not None:
        check_known(task_args.task, TASKS, f"unknown task {task_args.task!r}", "--task")
    if task_args.data_dir is not None and (task_args.task is None or task_args.train_file):
        what = "it is the folder of a task's own files" if task_args.task is None else "--train_file is given as well"
        raise InputError(what, where="--data_dir", remedy="give --task and --data_dir, or --train_file")

    _refuse_without_effect(task_args)
    if (
        task_args.write_predictions
        and task_args.max_eval_samples
        and task_args.task
        and TASKS[task_args.task].submissions
    ):
        what = "a submission needs all test rows"
        raise InputError(what, where="--max_eval_samples", remedy="leave out this option or --write_predictions")

    if task_args.train_file:
        return "files"
    named = task_args.data_dir or task_args.dataset_name or (TASKS[task_args.task].hub_id if task_args.task else None)
    if named is None:
        remedy = "give --train_file, --dataset_name or --task"
        raise InputError("no data are named", where="--train_file", remedy=remedy)
    return named


def _refuse_without_effect(task_args: ClassificationArguments) -> None:
    """Refuses options that do nothing with the data that are named."""
    for name in _NOT_IN_DATA_DIR if task_args.data_dir is not None else ():
        if getattr(task_args, name) is not None:
            what, remedy = "the layout of the files in --data_dir is known", "leave it out, or give --train_file"
            raise InputError(what, where=f"--{name}", remedy=remedy)
    if task_args.encoding is not None and not task_args.train_file:
        raise InputError("a Hub dataset has its own", where="--encoding", remedy="leave it out, or give --train_file")


def class_names(parts: dict[str, LabelledTexts], task_args: ClassificationArguments) -> tuple[str, ...]:
    """Class names by id; empty for a regression."""
    return () if is_regression(task_args) else order_labels(set(parts["train"].class_names()), task_args.task)


def read_given_parts(task_args: ClassificationArguments) -> dict[str, LabelledTexts]:
    """The parts that files or a Hub dataset hold, checked; `notes` of the training rows say what is worth knowing.

    Raises:
        InputError: with file and line; no data named; pairs in one part and single texts in another; one class only;
            another number of labels than the task has; or a label that training does not have.
    """
    source_of(task_args)
    parts, notes = _read(task_args)
    _check_pairs(parts)
    parts["train"].notes += notes

    if is_regression(task_args):
        for rows in parts.values():
            if rows.labels is not None:
                rows.numbers()
        return parts

    parts["train"].classes()
    _check_number_of_labels(parts["train"], class_names(parts, task_args), task_args.task)
    for name, rows in parts.items():
        _check_labels(rows, class_names(parts, task_args), name)
    return parts


def _read(task_args: ClassificationArguments) -> tuple[dict[str, LabelledTexts], list[str]]:
    """The parts, and remarks on them."""
    task = TASKS[task_args.task] if task_args.task else UNNAMED
    if task_args.data_dir is not None:
        return read_task_folder(str(task_args.task), task_args.data_dir)

    problem = REGRESSION if is_regression(task_args) else CLASSES if task_args.task else task_args.problem_type
    notes = [task.note] if task.note else []
    if task_args.train_file:
        named = NamedColumns(task_args.text_column, task_args.text_pair_column, task_args.label_column, problem)
        files = files_of_parts(task_args.files())
        return read_parts(files, named, task_args.encoding), notes

    named = NamedColumns(
        task_args.text_column or task.text,
        task_args.text_pair_column or task.pair,
        task_args.label_column or task.label,
        problem,
    )
    config = task_args.dataset_config_name or task.config
    splits = read_hub(task_args.dataset_name or task.hub_id, config, named, task.splits.values())
    parts = {part: splits[split] for part, split in task.splits.items() if split in splits}
    if task.benchmark and not task.test_has_labels:  # the Hub has -1, which is a number like others in a regression
        parts |= {part: replace(rows, labels=None) for part, rows in parts.items() if part.startswith("test")}
    return parts, notes


def _check_pairs(parts: dict[str, LabelledTexts]) -> None:
    """Refuses pairs of texts in one part and single texts in another."""
    kinds = {True: "single texts", False: "pairs of texts"}
    train = parts["train"].pairs is None
    for name, rows in parts.items():
        if (rows.pairs is None) != train:
            what = f"it holds {kinds[rows.pairs is None]}, and the training rows are {kinds[train]}"
            remedy = "name --text_column and --text_pair_column, of columns that all files have"
            raise InputError(what, where=rows.file(otherwise=f"the {name} rows"), remedy=remedy)


def _check_number_of_labels(train: LabelledTexts, labels: tuple[str, ...], task: str | None) -> None:
    """Refuses another number of labels than a benchmark's task has: its metric may need that number."""
    if task is None or TASKS[task].metric is ClassificationMetric or not TASKS[task].labels:
        return
    expected = TASKS[task].labels
    if len(labels) != len(expected):
        what = f"{len(labels)} labels, and the task {task} has {len(expected)}"
        remedy = f"leave --task out, or give rows of its labels: {', '.join(expected)}"
        raise InputError(what, where=train.file(), remedy=remedy)


def _check_labels(rows: LabelledTexts, labels: tuple[str, ...], name: str) -> None:
    """Refuses a label that training does not have."""
    known = set(labels)
    for number, label in enumerate(rows.labels or ()):
        if label not in known:
            where, line = rows.places[number] if rows.places else (name, None)
            near = did_you_mean(label, labels) or f"the labels there: {', '.join(labels[:10])}; "
            remedy = f"{near}correct or remove the row"
            raise InputError(f"label {label!r} is not in the training rows", where=where, line=line, remedy=remedy)


def read_all_parts(task_args: ClassificationArguments) -> dict[str, LabelledTexts]:
    """`train`, `validation` and `test`, and further parts of the task; those that are not given are split off.

    Raises:
        InputError: see `read_given_parts`; or there are too few rows to split off.
    """
    given = read_given_parts(task_args)
    train = given["train"]
    if others := {name: rows.joined() for name, rows in given.items() if name != "train"}:
        train.notes.append(describe_overlap(train.joined(), others))
    regression = is_regression(task_args)
    shares = {"validation": task_args.validation_split_percentage, "test": task_args.test_split_percentage}

    missing = [part for part in shares if part not in given]
    split = {"train": train}
    if len(missing) == 2:
        split = three_parts(train, shares["validation"], shares["test"], task_args.split_seed, regression)
    elif missing:
        (part,) = missing
        split["train"], split[part] = split_off(train, shares[part], task_args.split_seed, regression)

    split["train"].notes = train.notes
    return {"train": split["train"], **{name: rows for name, rows in (given | split).items() if name != "train"}}
