"""A task: the labelled rows of a run, split into parts, with the head that is trained on them."""

import copy
import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from torch import nn
from transformers import PreTrainedTokenizerBase

from bert_hf.config.files import json_checksum, write_durably
from bert_hf.config.finetuning_arguments import TaskArguments
from bert_hf.console import logger, shorten_list
from bert_hf.data.text.sources import hub_rows
from bert_hf.data.text.tokenization import load_tokenizer
from bert_hf.errors import InputError, check_known
from bert_hf.finetuning.heads import head_named
from bert_hf.finetuning.heads.head import Head, Kept, Labels, compute_further_metrics, compute_metrics, rows_of_files
from bert_hf.finetuning.metrics.evaluated import load_metrics
from bert_hf.finetuning.rows.near_duplicates import words_of
from bert_hf.finetuning.rows.splits import split_rows, take
from bert_hf.models.loading import config_of_checkpoint

# Modules and classes by the name of the head; one that is not listed has the task that all share
_TASKS = {
    "classification": "ClassificationTask",
    "token_classification": "TokenClassificationTask",
    "question_answering": "QuestionAnsweringTask",
    "multiple_choice": "MultipleChoiceTask",
}


class Task:
    """The rows of a run (section 4 of Devlin et al. 2019), their head, and the report.

    `run.py` (start, train, evaluate, finish) and `trainer.py` use it. A subclass adds baselines, decisions by the
    validation rows, and a report; a new kind of head needs none.

    Args:
        task_args: options: which rows, and how they become features.
        tokenizer: the checkpoint's.
        head: name or class of the head; by default `head_name`, which `Task` itself does not have.
        metrics: of the `evaluate` library, in addition to the head's own: names, or metrics.
        config: configuration of the checkpoint; by default it is read.
    """

    head_name: ClassVar[str]
    arguments: ClassVar[type[TaskArguments]] = TaskArguments
    public_files: ClassVar[tuple[str, ...]] = ()  # of the files that `analyse` writes, those that are pushed
    splits_test: ClassVar[bool] = True  # without --test_file, test rows are split off
    identity_options: ClassVar[tuple[str, ...]] = ()  # with other values of these options a run is another one
    example: ClassVar[Any] = "An example sentence."  # a row for the code of the card

    def __init__(
        self,
        task_args: TaskArguments,
        tokenizer: PreTrainedTokenizerBase,
        head: str | type[Head] | None = None,
        metrics: Any = (),
        config: Any = None,
    ):
        self.task_args = task_args
        self.tokenizer = tokenizer
        self.head = self.make_head(task_args, tokenizer, head)
        self.findings: list[str] = []  # sentences of `analyse`, for the report and the card
        self.forget_decisions()  # sets the attributes that `decide` changes
        self._encoded: dict[str, Any] = {}

        parts = self.read()
        self.prepare(parts)
        self.new_head = self._reason_for_new_head(config)  # "": the checkpoint's is trained further
        self.random_weights: list[str] = []  # names of the head's, set by `load_task_model`
        self.parts = limit_rows(self.add_split_parts(parts), task_args)  # train, validation; test and others, if any
        self.split_off = [part for part in self.parts if part not in parts]
        self.further = load_metrics([*(task_args.metric_name or []), *metrics], self.head.metric_config())
        self.further_names: tuple[str, ...] = ()  # of the numbers that `further` metrics gave in `metrics`

    @classmethod
    def make_head(cls, task_args: TaskArguments, tokenizer: Any, head: str | type[Head] | None = None) -> Head:
        """Return a new head with the options of the task: of a name, a class, or by default `head_name`."""
        head_class = head_named(head or cls.head_name) if head is None or isinstance(head, str) else head
        return head_class(tokenizer, vars(task_args))

    def _reason_for_new_head(self, config: Any) -> str:
        """Return why the checkpoint's layers of the head are not trained further; "" where they are."""
        where = self.task_args.model_name_or_path
        if self.task_args.from_scratch or (config is None and where is None):
            return "from scratch"
        return self.head.adopt_layers(config or config_of_checkpoint(str(where)))

    # ---- rows

    def read(self) -> dict[str, Any]:
        """Return the rows of files or of a Hub dataset, by part, checked row by row."""
        task_args = self.task_args
        source = self.source(task_args)
        if task_args.train_file:
            encoding = getattr(task_args, "encoding", None)
            files = task_args.files()
            rows_of_part = {part: list(rows_of_files(self.head, paths, encoding)) for part, paths in files.items()}
        else:
            rows_of_part = hub_rows(source, task_args.dataset_config_name)
        return {part: self.head.read(rows, self.label_requirement(part)) for part, rows in rows_of_part.items()}

    @staticmethod
    def label_requirement(part: str) -> Labels:
        """Return whether rows of a part need labels, for `Head.read`: by default test rows may have none."""
        return "optional" if part.startswith("test") else "needed"

    def prepare(self, parts: dict[str, Any]) -> None:
        """Check the rows of all parts, let the head take its labels, and log how many rows repeat a training row."""
        self.head.check(parts)
        words = {part: self._words_of_rows(rows) for part, rows in parts.items()} if self.head.text_columns else {}
        train = set(words.pop("train", [])) - {""}  # texts without words do not count
        for part, texts in words.items():
            if repeated := sum(text in train for text in texts):
                logger.info(f"{repeated:,} of {len(texts):,} {part} rows have the same words as a training row")

    def _words_of_rows(self, rows: Any) -> list[str]:
        """Return (N,) the normalized words of each row's texts, as one string."""
        texts = ("\n".join(self.head.texts_of_row(rows, number)) for number in range(len(rows)))
        return [" ".join(words_of(text)) for text in texts]

    def groups(self, rows: Any) -> np.ndarray:
        """Return (N,) group numbers: rows of a group, near-duplicates, stay in one part; by default each is alone."""
        return np.arange(len(rows))

    def strata(self, rows: Any) -> np.ndarray:
        """Return (N,) the class of each row, in proportion in all parts that are split off; by default one for all."""
        return np.zeros(len(rows), np.int64)

    def add_split_parts(self, parts: dict[str, Any]) -> dict[str, Any]:
        """Return the parts, with validation and test rows split off the training rows where there are none.

        Where validation rows are given, no test rows are split off.
        """
        if "validation" in parts:
            return parts
        task_args = self.task_args
        in_memory = isinstance(task_args.dataset_name, Mapping)  # who passes rows in Python keeps his test rows
        percentages = {"validation": task_args.validation_split_percentage}
        if self.splits_test and "test" not in parts and not in_memory:
            percentages = {"test": task_args.test_split_percentage, **percentages}

        train = parts["train"]
        where = "train_dataset" if in_memory else (task_args.train_file or [self.source(task_args)])[0]
        split = split_rows(train, self.groups(train), percentages, task_args.split_seed, where, self.strata)
        return split | {part: rows for part, rows in parts.items() if part != "train"}

    @classmethod
    def label_names(cls, task_args: TaskArguments) -> tuple[str, ...]:
        """Read the rows that the options name, and return their class names by id; no part is split off."""
        task = cls.__new__(cls)  # without `__init__`, which would also split the rows and read the checkpoint
        task.task_args, task.head = task_args, cls.make_head(task_args, None)
        task.prepare(task.read())
        return task.head.labels

    @classmethod
    def source(cls, task_args: TaskArguments) -> Any:
        """Return where the rows come from: "files", the Hub id of a dataset, or datasets in memory, by part."""
        if task_args.train_file:
            return "files"
        if task_args.dataset_name is None:
            remedy = "give --train_file or --dataset_name; `bert-hf evaluate` needs test rows only"
            raise InputError("no training data", where="--train_file", remedy=remedy)
        return task_args.dataset_name

    def describe_head(self) -> str:
        """Return a line on whether the checkpoint's head is trained further, or why not."""
        if self.new_head:
            return f"head: new, {self.new_head}"
        classes = f", for {shorten_list(self.head.labels)}" if self.head.labels else ""
        return f"head: the checkpoint's, trained further{classes}"

    def describe(self) -> str:
        """Return a line about the rows of each part."""
        return "\n".join(f"{part}: {self.head.describe_rows(rows)}" for part, rows in self.parts.items())

    def add_part(self, part: str, rows: Any) -> None:
        """Read and check labelled rows in memory as a part; an earlier part of this name is replaced."""
        self.parts[part] = self.head.read(rows)
        self.head.check({part: self.parts[part]})
        self._encoded.pop(part, None)

    # ---- features

    def encoded(self, part: str) -> Any:
        """Return the features of a part as the head encodes them, once: later calls return the same ones."""
        if part not in self._encoded:
            self._encoded[part] = self.head.encode(self.parts[part])
        return self._encoded[part]

    def is_labelled(self, part: str) -> bool:
        """Return whether the rows of a part have labels."""
        return "labels" in self.encoded(part).features.column_names

    # ---- metrics and decisions

    def predictions(self, part: str, kept: Kept) -> Any:
        """Return the predictions of a part's rows (see `Head.decode`)."""
        return self.head.decode(self.parts[part], self.encoded(part), kept)

    def metrics(self, part: str, kept: Kept, losses: np.ndarray) -> dict[str, float]:
        """Return the metrics of a labelled part, set `further_names`; `losses`: (F, 2), sum and number by feature."""
        rows, predictions = self.parts[part], self.predictions(part, kept)
        further = compute_further_metrics(self.head, rows, predictions, self.further)
        self.further_names = tuple(further)
        return {**further, **compute_metrics(self.head, rows, predictions, losses)}

    def forget_decisions(self) -> None:
        """Forget what the validation rows of an earlier training decided."""
        self.head.threshold = None

    def restore(self, config: Any) -> None:
        """Restore from the configuration what the validation rows decided, to evaluate without training."""
        self.head.restore(config)

    def decide(self, kept: Kept, network: Any) -> list[str]:
        """Decide by the validation rows after the training, such as a threshold; return lines on it for the log.

        A calibration changes weights of the network; where it is None, they stay.
        """
        return []

    def analyse(self, folder: Path, part: str, kept: Mapping[str, Kept]) -> list[str]:
        """Write the error analysis into a folder, and return its findings as sentences.

        `part` is the one whose metrics are reported, `kept` is by part.
        """
        return []

    def write_predictions(self, folder: Path, part: str, kept: Kept) -> None:
        """Write `PART_predictions.jsonl`: texts and predictions of each row, in their order."""
        rows, head = self.parts[part], self.head
        lines = []
        for number, added in enumerate(head.added_columns(rows, self.predictions(part, kept))):
            columns: dict[str, Any] = dict(zip(head.text_columns, head.texts_of_row(rows, number), strict=True))
            columns |= {f"prediction_{name}" if name in columns else name: value for name, value in added.items()}
            lines.append(json.dumps(columns, ensure_ascii=False) + "\n")
        write_durably(folder / f"{part}_predictions.jsonl", "".join(lines))

    def examples(self, part: str, most: int = 5) -> list[list[str]]:
        """Return the texts of the first rows of each class for the demo; [] for a head without text boxes."""
        if not self.head.text_columns:
            return []
        rows = self.parts[part]
        strata = self.strata(rows)
        rank = pd.Series(strata).groupby(strata).cumcount().to_numpy()  # of each row within its class
        chosen = np.argsort(rank, kind="stable")[:most]  # the first row of each class, then the second ones
        return [self.head.texts_of_row(rows, number) for number in chosen.tolist()]

    # ---- identity, card, report

    def fingerprint(self) -> dict:
        """Return the entries of the run's identity that depend on the rows and on the task's options (JSON)."""
        options = {name: getattr(self.task_args, name) for name in self.identity_options}
        data = [self.row_identity(part) for part in self.parts]
        return {"data": json_checksum(data)[:16], "labels": list(self.head.labels), **options}

    def row_identity(self, part: str) -> Any:
        """Return JSON values that tell the rows of a part from other rows, for the run's identity.

        By default their features; a task with rows of its own returns the rows, which no tokenizer changes.
        """
        return self.encoded(part).features.to_dict()

    def usage(self, model: str) -> str:
        """Return Python code for the card that calls the model (`model`: its folder or Hub id) on an example."""
        return f'from bert_hf import predict\n\npredict("{model}", [{json.dumps(self.example)}])'

    def limits(self) -> list[str]:
        """Return sentences for the card: what the metrics did and the code of `usage` does not do."""
        return []

    def baseline_metrics(self) -> dict[str, float]:
        """Return metrics of the test rows without a network: `baseline_…`."""
        return {}

    def report(self, part: str, metrics: dict[str, float], baselines: dict[str, float], kept: Kept) -> str:
        """Return the text printed at the end on a part, "test" or "validation": by default every metric of it."""
        return "\n".join(f"{name.ljust(28)}{value:12.4f}" for name, value in metrics.items())


def limit_rows(parts: dict[str, Any], task_args: TaskArguments) -> dict[str, Any]:
    """Return the parts, each with at most --max_train_samples or --max_eval_samples rows, drawn by --split_seed."""
    result = {}
    for number, (part, rows) in enumerate(parts.items()):
        most = task_args.max_train_samples if part == "train" else task_args.max_eval_samples
        if most is not None and len(rows) > most:
            drawn = np.random.default_rng([task_args.split_seed, number]).permutation(len(rows))[:most]
            rows = take(rows, np.sort(drawn))
        result[part] = rows
    return result


def task_of_rows(
    model: nn.Module | str | Path,
    parts: Mapping[str, Any],
    head: str | type[Head],
    tokenizer: PreTrainedTokenizerBase | None = None,
    metrics: Sequence[Any] = (),
    options: Mapping[str, Any] | None = None,
) -> Task:
    """Return the task of rows in memory, by part (None: no such rows); the other arguments are `FineTuner`'s."""
    if parts.get("train") is None:
        raise InputError("no training rows", where="FineTuner", remedy="pass train_dataset, or a task")
    if isinstance(head, str):
        check_known(head, _TASKS, f"no head {head!r} is fine-tuned", "head")
    name = head if isinstance(head, str) else head.name
    module = importlib.import_module(f"bert_hf.finetuning.tasks.{name if name in _TASKS else 'task'}")
    task_class: Any = getattr(module, _TASKS.get(name, "Task"))
    known_options = [field.name for field in fields(task_class.arguments)]
    for option in options or {}:
        check_known(option, known_options, f"the head {name!r} has no option {option!r}", "FineTuner")

    where, config = model, None  # of a folder or Hub id the task reads the configuration
    if not isinstance(model, str | Path):
        network: Any = model
        where, config = network.name_or_path, copy.copy(network.config)
        config.architectures = [each.__name__ for each in type(model).__mro__]  # also of a subclass of one's own
    rows_of_part = {part: rows for part, rows in parts.items() if rows is not None}
    task_args = task_class.arguments(str(where), dataset_name=rows_of_part, **(options or {}))
    return task_class(task_args, tokenizer or load_tokenizer(str(where)), head, metrics, config)
