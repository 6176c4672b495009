"""Reads the training, validation and test rows of a classification task, and splits off the parts that are missing."""

from dataclasses import replace

from bert_hf.config.finetuning_arguments import ClassificationArguments
from bert_hf.errors import InputError, did_you_mean
from bert_hf.finetuning.glue import read_task_folder
from bert_hf.finetuning.labelled.columns import CLASSES, REGRESSION, NamedColumns
from bert_hf.finetuning.labelled.datasets import read_hub, read_parts
from bert_hf.finetuning.labelled.folders import files_of_parts
from bert_hf.finetuning.labelled.texts import LabelledTexts, drop_rare
from bert_hf.finetuning.splitting.splits import describe_overlap, split_off, three_parts
from bert_hf.finetuning.tasks import TASKS, Task, order_labels


def is_regression(asked: ClassificationArguments) -> bool:
    """Whether labels are numbers: by --problem_type, else by the task."""
    if asked.problem_type is not None:
        return asked.problem_type == REGRESSION
    return asked.task in TASKS and TASKS[asked.task].regression


def source_of(asked: ClassificationArguments) -> str:
    """Where the rows come from, in words.

    Raises:
        InputError: nothing is named, the task is unknown, or options contradict each other.
    """
    if asked.task is not None and asked.task not in TASKS:
        remedy = did_you_mean(asked.task, TASKS).strip() or f"one of: {', '.join(TASKS)}"
        raise InputError(f"unknown task {asked.task!r}", where="--task", remedy=remedy)
    if asked.data_dir is not None and (asked.task is None or asked.train_file):
        what = "it is the folder of a task's own files" if asked.task is None else "--train_file is given as well"
        raise InputError(what, where="--data_dir", remedy="give --task and --data_dir, or --train_file")

    if asked.write_predictions and asked.max_eval_samples and asked.task and TASKS[asked.task].submissions:
        what = "a submission needs all test rows"
        raise InputError(what, where="--max_eval_samples", remedy="leave out this option or --write_predictions")

    if asked.train_file:
        return "files"
    named = asked.data_dir or asked.dataset_name or (TASKS[asked.task].hub_id if asked.task else None)
    if named is None:
        remedy = "give --train_file, --dataset_name or --task"
        raise InputError("no data are named", where="--train_file", remedy=remedy)
    return named


def class_names(parts: dict[str, LabelledTexts], asked: ClassificationArguments) -> tuple[str, ...]:
    """Class names by id; empty for a regression."""
    return () if is_regression(asked) else order_labels(set(parts["train"].class_names()), asked.task)


def read_given_parts(asked: ClassificationArguments) -> dict[str, LabelledTexts]:
    """The parts that files or a Hub dataset hold, checked; `notes` of the training rows say what is worth knowing.

    Raises:
        InputError: with file and line; no data named; pairs in one part and single texts in another; one class only;
            or a label that training does not have.
    """
    source_of(asked)
    parts, notes = _read(asked)
    _check_pairs(parts)
    if asked.drop_rare is not None and not is_regression(asked):
        parts = drop_rare(parts, asked.drop_rare)
    parts["train"].notes += notes

    if is_regression(asked):
        for rows in parts.values():
            if rows.labels is not None:
                rows.numbers()
        return parts

    labels = set(parts["train"].class_names())
    if len(labels) < 2:
        remedy = "give rows of two labels or more"
        raise InputError(f"only one label: {min(labels)}", where=parts["train"].file(), remedy=remedy)
    for name, rows in parts.items():
        _check_labels(rows, class_names(parts, asked), name)
    return parts


def _read(asked: ClassificationArguments) -> tuple[dict[str, LabelledTexts], list[str]]:
    """The parts, and remarks on them."""
    task = TASKS[asked.task] if asked.task else Task("", None, None, ())
    if asked.data_dir is not None:
        return read_task_folder(str(asked.task), asked.data_dir)

    problem = REGRESSION if is_regression(asked) else CLASSES if asked.task else asked.problem_type
    notes = [task.note] if task.note else []
    if asked.train_file:
        named = NamedColumns(asked.text_column, asked.text_pair_column, asked.label_column, problem)
        files = files_of_parts(asked.train_file, asked.validation_file, asked.test_file)
        return read_parts(files, named, asked.encoding), notes

    named = NamedColumns(
        asked.text_column or task.text, asked.text_pair_column or task.pair, asked.label_column or task.label, problem
    )
    config = asked.dataset_config_name or task.config
    splits = read_hub(asked.dataset_name or task.hub_id, config, named, task.splits.values())
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


def _check_labels(rows: LabelledTexts, labels: tuple[str, ...], name: str) -> None:
    """Refuses a label that training does not have."""
    known = set(labels)
    for number, label in enumerate(rows.labels or ()):
        if label not in known:
            where, line = rows.places[number] if rows.places else (name, None)
            near = did_you_mean(label, labels) or f"the labels there: {', '.join(labels[:10])}; "
            remedy = f"{near}correct or remove the row"
            raise InputError(f"label {label!r} is not in the training rows", where=where, line=line, remedy=remedy)


def read_all_parts(asked: ClassificationArguments) -> dict[str, LabelledTexts]:
    """`train`, `validation` and `test`, and further parts of the task; those that are not given are split off.

    Raises:
        InputError: see `read_given_parts`; or there are too few rows to split off.
    """
    given = read_given_parts(asked)
    train = given["train"]
    if others := {name: rows for name, rows in given.items() if name != "train"}:
        train.notes.append(describe_overlap(train, others))
    regression = is_regression(asked)
    validation, test = asked.validation_split_percentage, asked.test_split_percentage

    if "test" in given and "validation" in given:
        split = given
    elif "test" in given:
        rest, held = split_off(train, validation, asked.split_seed, regression)
        split = {"train": rest, "validation": held}
    elif "validation" in given:
        rest, held = split_off(train, test, asked.split_seed, regression)
        split = {"train": rest, "test": held}
    else:
        split = three_parts(train, validation, test, asked.split_seed, regression)

    split["train"].notes = train.notes
    return {"train": split["train"], **{name: rows for name, rows in (given | split).items() if name != "train"}}
