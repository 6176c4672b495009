"""The interface between a task family and the shared path of fine-tuning: rows, network, loss, metrics."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import datasets
import numpy as np
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from bert_hf.config.finetuning_arguments import TaskArguments
from bert_hf.errors import InputError
from bert_hf.finetuning.losses import cross_entropies
from bert_hf.finetuning.splits import split_rows, take

Arrays = np.ndarray | tuple[np.ndarray, ...]
TRAINED_ON = "trained_on"  # entry of the network's configuration: how rows become inputs, for predictions


class DownstreamTask(ABC):
    """A task family (section 4 of Devlin et al. 2019), with its rows read and its tokenizer.

    The shared path is `run.py` (start, train, evaluate, finish) on `trainer.py`. A *row* is what the user gave (a
    text, a question, a sentence); a *feature* is one input of the network. A row may become several features.

    Attributes:
        parts: the rows of "train" and "validation", and of "test" and other parts, if any.
        split_off: the parts whose rows are split off the training rows.
        labels: class names by id; empty for a task without classes.
        threshold: of a prediction, as the validation rows decided, or as it is given; None: there is none.
        findings: sentences of `analyse`, for the report and the card.
    """

    auto_class: ClassVar[Any]  # the stock class: AutoModelForSequenceClassification, …
    new_layers: ClassVar[tuple[str, ...]]  # prefixes of parameters that a pre-trained checkpoint need not have
    pipeline_tag: ClassVar[str]  # of the Hub
    stock: ClassVar[bool] = True  # whether stock transformers loads the result
    extra_columns: ClassVar[tuple[str, ...]] = ()  # tensors of a batch that only `reduce` reads
    public_files: ClassVar[tuple[str, ...]] = ()  # of the files that `analyse` writes, those that are pushed
    splits_test: ClassVar[bool] = True  # without --test_file, test rows are split off

    def __init__(self, task_args: TaskArguments, tokenizer: PreTrainedTokenizerBase):
        self.task_args = task_args
        self.tokenizer = tokenizer
        self.begin()
        self.findings: list[str] = []
        parts = self.read(task_args)
        self.labels = self.class_names(task_args, parts)
        self.parts = limited(self.complete(task_args, parts), task_args)
        self.split_off = [part for part in self.parts if part not in parts]

    # ---- rows

    @classmethod
    @abstractmethod
    def read(cls, task_args: TaskArguments) -> dict[str, Any]:
        """The rows of files or of a Hub dataset, by part, checked."""

    @classmethod
    def groups(cls, rows: Any) -> np.ndarray:
        """(N,) group numbers: rows of a group are near-duplicates, and stay in one part where rows are split off."""
        return np.arange(len(rows))

    @classmethod
    def strata(cls, task_args: TaskArguments, rows: Any) -> np.ndarray:
        """(N,) class of each row, in proportion in all parts that are split off."""
        return np.zeros(len(rows), np.int64)

    @classmethod
    def complete(cls, task_args: TaskArguments, parts: dict[str, Any]) -> dict[str, Any]:
        """The parts that were read, and those that are split off the training rows.

        Validation rows that are not given are split off, and so are test rows where neither are given (if
        `splits_test`): a run with validation rows alone is judged by these.
        """
        if "validation" in parts:
            return parts
        percentages = {"validation": task_args.validation_split_percentage}
        if cls.splits_test and "test" not in parts:
            percentages = {"test": task_args.test_split_percentage, **percentages}

        train, strata_of = parts["train"], functools.partial(cls.strata, task_args)
        where = (task_args.train_file or [cls.source(task_args)])[0]
        made = split_rows(train, cls.groups(train), percentages, task_args.split_seed, where, strata_of)
        return made | {part: rows for part, rows in parts.items() if part != "train"}

    @classmethod
    def describe_rows(cls, rows: Any, task_args: TaskArguments) -> str:
        """Describes the rows of a part: number, columns, classes."""
        return f"{len(rows):,} rows"

    @classmethod
    def class_names(cls, task_args: TaskArguments, parts: dict[str, Any]) -> tuple[str, ...]:
        """Class names by id, of all rows that were read."""
        return ()

    @classmethod
    def source(cls, task_args: TaskArguments) -> str:
        """Where the rows come from, in words."""
        if task_args.train_file:
            return "files"
        if task_args.dataset_name is None:
            raise InputError("no training data", where="--train_file", remedy="give --train_file or --dataset_name")
        return task_args.dataset_name

    def describe(self) -> str:
        """Lines about the rows of all parts."""
        return "\n".join(f"{part}: {self.describe_rows(rows, self.task_args)}" for part, rows in self.parts.items())

    @abstractmethod
    def encoded(self, part: str) -> datasets.Dataset:
        """The features of a part, not padded: the network's inputs, `labels` if there are any, `length` in tokens."""

    def inputs_per_epoch(self) -> int:
        """Features of the training rows."""
        return len(self.encoded("train"))

    @abstractmethod
    def collator(self) -> Callable[[list[dict]], dict[str, Tensor]]:
        """Makes a padded batch of features."""

    # ---- network and loss

    def config_options(self) -> dict:
        """Options of the network's configuration: by default number and names of the classes; problem_type, …"""
        return {
            "num_labels": len(self.labels),
            "id2label": dict(enumerate(self.labels)),
            "label2id": {name: number for number, name in enumerate(self.labels)},
        }

    def chosen_options(self) -> dict:
        """Options of the network's configuration for predictions: how rows become inputs, a threshold.

        Called before the training and after each evaluation.
        """
        return {}

    def losses(self, inputs: dict[str, Tensor], outputs, label_smoothing: float = 0.0) -> Tensor:
        """(B,) sum of the losses of each feature's labels (see `losses.py`): by default of classes.

        Args:
            inputs: the whole batch: `labels`, `attention_mask`, `extra_columns`, …
            label_smoothing: ignored where targets are numbers or answers.
        """
        return cross_entropies(outputs["logits"], inputs["labels"], label_smoothing)

    def label_weights(self, labels: Tensor) -> Tensor:
        """(B,) the weight of each feature in the mean that is the training loss, or one weight for all."""
        return labels.new_ones(())

    # ---- predictions

    @classmethod
    @abstractmethod
    def metric_names(cls, task_args: TaskArguments) -> tuple[str, ...]:
        """Names of the validation metrics, without `eval_`; the first decides which weights are kept.

        A metric that is better when it is lower is named `…loss`.
        """

    def reduce(self, inputs: dict[str, Tensor], outputs) -> Tensor | tuple[Tensor, ...]:
        """What is kept of a batch's outputs: (B, …) tensors on the device; by default the logits."""
        return outputs["logits"]

    @abstractmethod
    def evaluate(self, part: str, predictions: Arrays, labels: np.ndarray | None) -> dict[str, float]:
        """Metrics of a part.

        Args:
            predictions: what `reduce` kept, one entry per feature in the order of `encoded(part)`; shorter entries
                are padded with -100 where the batches differed in width.
            labels: one per feature, padded in the same way.
        """

    def begin(self) -> None:
        """Before a training: forgets what the validation rows of an earlier one decided."""
        self.threshold: float | None = None

    def decide_as_trained(self, config: Any) -> None:
        """Without training: takes what the validation rows decided then from the network's configuration."""
        self.threshold = getattr(config, "decision_threshold", None)

    def decide(self, predictions: Arrays, network: Any) -> list[str]:
        """After the training: what the validation rows decide, in some lines. Without a network no weights change."""
        return []

    def analyse(self, folder: Path, part: str, predictions: dict[str, Arrays]) -> list[str]:
        """Writes what a person looks at before a model is used, and says the most important in some sentences.

        `part` is that of the reported metrics.
        """
        return []

    @abstractmethod
    def write_predictions(self, folder: Path, part: str, predictions: Arrays) -> None:
        """Writes the predictions of a part, in the order of its rows."""

    # ---- identity, card, report

    @abstractmethod
    def fingerprint(self) -> dict:
        """The entries of the run's identity that depend on the rows and on the task's options (JSON)."""

    @abstractmethod
    def usage(self, model: str) -> str:
        """Python code for the model card that calls the model (`model`: its folder or Hub id) on a neutral example."""

    def settings(self) -> dict:
        """Rows that are added to the card's table of settings."""
        return {}

    def limits(self) -> list[str]:
        """Sentences for the card: what the metrics did and the code of `usage` does not do."""
        return []

    def baselines(self, folder: Path) -> dict[str, float]:
        """Metrics of the test rows without a network: `baseline_…`. The best baseline is saved in the folder."""
        return {}

    def report(self, metrics: dict[str, float], baselines: dict[str, float], predictions: Arrays | None) -> str:
        """The text printed at the end: by default every test metric (or, without test rows, validation metric)."""
        prefix = "test_" if any(name.startswith("test_") for name in metrics) else "eval_"
        part_metrics = {name: value for name, value in metrics.items() if name.startswith(prefix)}
        return "\n".join(f"{name.ljust(28)}{value:12.4f}" for name, value in part_metrics.items())


def limited(parts: dict[str, Any], task_args: TaskArguments) -> dict[str, Any]:
    """The parts, cut down to --max_train_samples and --max_eval_samples rows, which --split_seed draws."""
    result = {}
    for number, (part, rows) in enumerate(parts.items()):
        most = task_args.max_train_samples if part == "train" else task_args.max_eval_samples
        if most is not None and len(rows) > most:
            drawn = np.random.default_rng([task_args.split_seed, number]).permutation(len(rows))[:most]
            rows = take(rows, np.sort(drawn))
        result[part] = rows
    return result
