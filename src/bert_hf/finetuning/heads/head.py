"""The interface of a head: one kind of output layer on BERT, and all that the project knows about it."""

import contextlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, ClassVar, Literal, NamedTuple

import datasets
import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase

from bert_hf.config.precision import inference_autocast
from bert_hf.console import shorten_list
from bert_hf.data.text.input_files import expand_paths, kind_of
from bert_hf.data.text.tables import Row, read_rows
from bert_hf.errors import InputError, first_line
from bert_hf.finetuning.losses import count_labels, cross_entropies
from bert_hf.models.inference import run_by_length
from bert_hf.models.unpadded_encoder import with_layout, without_padding

TRAINED_ON = "trained_on"  # entry of the network's configuration: how rows become features, for predictions

Kept = np.ndarray | tuple[np.ndarray, ...]  # (F, …): what `Head.keep` kept of the outputs for each feature
Labels = Literal["needed", "optional", "ignored"]
Rows = Any  # a container of rows of one head: `LabelledTexts`, `TaggedSentences`, a list of questions or of choices


class Features(NamedTuple):
    """Rows as features, one per row, in order. A head with several features per row has a class of its own for it."""

    features: datasets.Dataset  # `input_ids`, not padded, further inputs, `length` in tokens, and `labels` if known


class Head(ABC):
    """One kind of output layer on BERT, from the rows of a file to their predictions and metrics.

    A *row* is what the user gave (a text, a question, a sentence); a *feature* is one input of the network. A row may
    become several features. Training, `predict`, `evaluate` and `export` take the same steps:

        read → encode → collate → the network → losses, keep → decode → added_columns, metrics

    Args:
        tokenizer: None where rows are only read.
        given: options of the command, by name; None means "not given".
        config: configuration of the finished model that has this head; None for a new one. It records how rows became
            features, the labels and the thresholds.

    Attributes:
        labels: class names by id; empty for a head without classes. A new head takes them from the training rows.
        length: tokens of a feature, special tokens included, at most.
        threshold: on the probability of class 1 (a list: of each label), or on null odds of a question; None: not set.
        empty_rows: how many rows without a text were read for predictions.
    """

    name: ClassVar[str]  # as in `FineTuner(…, head=name)`; recorded in the configuration
    auto_class: ClassVar[Any]  # the stock class: AutoModelForSequenceClassification, …
    start_class: ClassVar[Any] = None  # the stock class that a training starts from, where it is not `auto_class`
    architectures: ClassVar[tuple[str, ...]]  # endings of the class names, such as ForSequenceClassification
    new_layers: ClassVar[tuple[str, ...]]  # prefixes of parameters that a pre-trained checkpoint need not have
    pipeline_tag: ClassVar[str]  # of the Hub
    stock: ClassVar[bool] = True  # stock transformers loads the result
    option_names: ClassVar[tuple[str, ...]] = ()  # options that decide how rows become features; they are recorded
    own_metric: ClassVar[str]  # class in `metrics/evaluated.py`
    extra_columns: ClassVar[tuple[str, ...]] = ()  # tensors of a batch that only `losses` and `keep` read
    text_columns: tuple[str, ...] = ()  # of a row, for which the demo has text boxes

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase | None, given: Mapping[str, Any] | None = None, config: Any = None
    ):
        self.tokenizer: Any = tokenizer
        self.given = {name: value for name, value in (given or {}).items() if value is not None}
        self.trained: dict[str, Any] = getattr(config, TRAINED_ON, None) or {}  # from `record`; {} for a new head
        self.is_new = config is None
        self.labels: tuple[str, ...] = ()
        self.threshold: Any = None
        self.empty_rows = 0
        longest = self.option("max_seq_length", getattr(tokenizer, "model_max_length", 0))
        self.length = min(longest, getattr(config, "max_position_embeddings", longest))
        if config is not None:
            self.labels = tuple(str(config.id2label[number]) for number in sorted(config.id2label))
            self.restore(config)

    def option(self, name: str, default: Any = None) -> Any:
        """Return an option: as it is given, else as in the training, else `default`."""
        value = self.given.get(name, self.trained.get(name))
        return default if value is None else value

    @classmethod
    def suits(cls, config: Mapping[str, Any]) -> bool:
        """Return whether a checkpoint with this config.json has this head."""
        architectures = config.get("architectures") or []
        return any(each.endswith(ending) for each in architectures for ending in cls.architectures)

    # ---- the head that a checkpoint has

    def adopt_layers(self, config: Any) -> str:
        """Prepare to train the layers of a checkpoint's head further; return why they do not fit, "" where they do.

        If they have the class names of these rows, `labels` take the checkpoint's order of them.
        """
        if not self.suits(config.to_dict()):
            return f"the checkpoint has no layers for {self.name.replace('_', ' ')}"
        trained_head = type(self)(None, config=config)
        if trained_head.predicts != self.predicts:
            return f"the checkpoint predicts {trained_head.predicts}, the rows have {self.predicts}"
        trained_labels = trained_head.labels
        if sorted(trained_labels) == sorted(self.labels):
            self.labels = trained_labels
            return ""

        # The order of LABEL_0, LABEL_1, … is known where an option names the classes, or the rows number them
        are_numbers = self.labels == tuple(map(str, range(len(self.labels))))
        if trained_labels == unnamed_labels(len(self.labels)) and (self.given.get("class_names") or are_numbers):
            return ""
        return f"the checkpoint has the classes {shorten_list(trained_labels)}, the rows {shorten_list(self.labels)}"

    @property
    def predicts(self) -> str:
        """Return in words what the head predicts, to compare with a checkpoint's head; by default its name."""
        return self.name

    # ---- rows

    def read_file(self, path: str, encoding: str | None = None) -> Iterator[Row]:
        """Yield the rows of a file as they stand in it; by default the file is a table."""
        yield from read_rows(path, encoding, separator=self.given.get("separator"))

    @abstractmethod
    def read(self, rows: Sequence[Row], labels: Labels = "needed") -> Rows:
        """Return rows as this head's own type, such as `LabelledTexts`; one that does not fit is an `InputError`.

        Labels are "needed" of training and validation rows, "optional" of test rows, "ignored" of rows to predict.
        """

    def check(self, parts: Mapping[str, Rows]) -> None:  # noqa: B027 - optional
        """Check the labels of all parts together; a new head takes its labels from the rows of `train`."""

    def describe_rows(self, rows: Rows) -> str:
        """Return a line about rows, such as their number and classes; by default the number."""
        return f"{len(rows):,} rows"

    # ---- features

    @abstractmethod
    def encode(self, rows: Rows) -> Any:
        """Return the features of rows (see `Features`), with `labels` if they have any."""

    def collate(self, features: list[dict]) -> dict[str, Tensor]:
        """Return a padded batch of features; by default their inputs are padded, and nothing else."""
        return DataCollatorWithPadding(self.tokenizer)(features)

    # ---- network and loss

    def attach(self, network: Any) -> None:  # noqa: B027 - optional
        """Take what the head needs of the network (hidden states as features, a scale of labels), before `encode`."""

    def resume(self, trained_on: Mapping[str, Any]) -> None:  # noqa: B027 - optional
        """Restore what a training checkpoint's weights depend on (a scale of labels), from its `TRAINED_ON` entry."""

    def begin_training(self, network: Any, features: Any, new_head: bool) -> None:  # noqa: B027 - optional
        """Prepare the head's layers for a training on features; a `new_head` has random weights.

        The network is None where the engine keeps weights of its own (DeepSpeed, FSDP).
        """

    def end_training(self, network: Any) -> None:  # noqa: B027 - optional
        """Undo in the weights what `begin_training` changed, which the stock class knows nothing of."""

    def config_options(self) -> dict:
        """Return options of the network's configuration: by default the names of the classes."""
        return label_options(self.labels)

    def forward(self, network: Callable, batch: dict[str, Tensor]) -> Any:
        """Return the outputs of a network for a batch, from the columns that it takes."""
        others = ("labels", "length", *self.extra_columns)
        return network(**{name: values for name, values in batch.items() if name not in others})

    def losses(self, inputs: dict[str, Tensor], outputs: Any, label_smoothing: float = 0.0) -> Tensor:
        """Return (B,) for each feature the sum of the losses of its labels; by default the cross-entropy of classes.

        `inputs` are the whole batch. Label smoothing is ignored unless a label is one of several classes.
        """
        return cross_entropies(outputs["logits"], inputs["labels"], label_smoothing)

    def label_weights(self, labels: Tensor) -> Tensor:
        """Return (B,) the weight of each feature in the mean that is the training loss; by default () 1 for all."""
        return labels.new_ones(())

    # ---- predictions

    def keep(self, inputs: dict[str, Tensor], outputs: Any) -> Tensor | tuple[Tensor, ...]:
        """Return the outputs of a batch that predictions need: (B, …) tensors on the device; by default the logits."""
        return outputs["logits"]

    @abstractmethod
    def decode(self, rows: Rows, encoded: Any, kept: Kept) -> Any:
        """Return the predictions of rows, from what was kept for each feature, in order.

        Kept entries of different widths are padded with -100.
        """

    @abstractmethod
    def added_columns(self, rows: Rows, predictions: Any) -> list[dict[str, Any]]:
        """Return the new columns of each row, the prediction first: one dictionary per row."""

    # ---- metrics

    @abstractmethod
    def metric_names(self) -> tuple[str, ...]:
        """Return the names of the metrics in their order; the first decides by default which weights are kept.

        A metric that is better when it is lower has a name that ends as one of `LOWER_IS_BETTER` does.
        """

    def metric(self) -> Any:
        """Return the `evaluate.Metric` of this head: by default the one of this name in `metrics/evaluated.py`."""
        from bert_hf.finetuning.metrics import evaluated  # loads `evaluate`

        return getattr(evaluated, self.own_metric)()

    @abstractmethod
    def metric_inputs(self, rows: Rows, predictions: Any) -> dict[str, Any]:
        """Return `predictions` and `references` of labelled rows, as metrics of the `evaluate` library take them."""

    def metric_options(self, rows: Rows, predictions: Any) -> dict[str, Any]:
        """Return the arguments of this head's own metric, in addition to predictions and references."""
        return {}

    def metric_config(self) -> str | None:
        """Return the configuration name for loading further metrics, such as `multilabel`; None: their default."""
        return None

    def mean_loss(self, rows: Rows, predictions: Any, losses: np.ndarray) -> float:
        """Return the mean loss over all labels; `losses` are (F, 2): the sum and the number of each feature's."""
        total, count = np.asarray(losses, dtype=np.float64).sum(axis=0)
        return float(total / max(1.0, count))

    def table(self, rows: Rows, predictions: Any) -> str:
        """Return a table for the console, such as precision and recall of each class; "" if there is none."""
        return ""

    def texts_of_row(self, rows: Rows, number: int) -> list[str]:
        """Return the texts of a row, one for each of `text_columns`: by default its attributes of these names."""
        return [getattr(rows[number], column) for column in self.text_columns]

    def picture(self, texts: Mapping[str, str], rows: Rows, predictions: Any) -> str:
        """Return the prediction of one row as HTML for the demo; `texts` are the row's, by column."""
        [added] = self.added_columns(rows, predictions)
        prediction = next(iter(added.values()))  # the first column
        text = f"{prediction:.4f}" if isinstance(prediction, float) else str(prediction)
        return f"<h1>{escape(text)}</h1>"

    # ---- what the configuration records

    def record(self) -> dict[str, Any]:
        """Return the entries of the network's configuration that `restore` and a later training read."""
        names = ("max_seq_length", *self.option_names)
        options = {"head": self.name, **{name: self.option(name) for name in names}}
        return {TRAINED_ON: options}

    def restore(self, config: Any) -> None:  # noqa: B027 - optional
        """Take what `record` wrote, such as thresholds, from the configuration of a finished model."""


def label_options(names: Sequence[str]) -> dict:
    """Return the entries of a configuration that name the outputs of a network."""
    return {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}


def unnamed_labels(count: int) -> tuple[str, ...]:
    """Return the names that transformers gives to outputs without names: LABEL_0, LABEL_1, …"""
    return tuple(f"LABEL_{number}" for number in range(count))


def rows_of_files(
    head: Head, files: Sequence[str], encoding: str | None = None, class_names: bool = True
) -> Iterator[Row]:
    """Yield the rows of files, globs and folders in their order; a file without rows is an error.

    A Parquet file may number its classes and name them once: rows have the names, unless `class_names` is false.
    """
    for path in expand_paths(list(files), folders=True):
        has_rows = False
        keeps_numbers = not class_names and kind_of(path) == ".parquet"
        rows = read_rows(path, class_names=False) if keeps_numbers else head.read_file(path, encoding)
        for row in rows:
            has_rows = True
            yield row
        if not has_rows:
            raise InputError("contains no rows", where=path, remedy="give a file with rows")


def compute_metrics(head: Head, rows: Rows, predictions: Any, losses: np.ndarray) -> dict[str, float]:
    """Return the metrics of labelled rows: the head's own and `loss`."""
    inputs = head.metric_inputs(rows, predictions)
    metrics = head.metric().compute(**inputs, **head.metric_options(rows, predictions))
    return {**metrics, "loss": head.mean_loss(rows, predictions, losses)}


def compute_further_metrics(head: Head, rows: Rows, predictions: Any, metrics: Sequence[Any]) -> dict[str, float]:
    """Return the numbers that further metrics of the `evaluate` library compute, by name.

    A name that an earlier metric used becomes `METRIC_NAME`. Metrics that average over classes take the macro average
    where there are more than two classes, or several labels per row.
    """
    results: dict[str, float] = {}
    inputs = head.metric_inputs(rows, predictions) if metrics else {}
    needs_average = len(head.labels) > 2 or head.metric_config() is not None
    for metric in metrics:
        can_average = "average" in inspect.signature(metric._compute).parameters
        options = {"average": "macro"} if needs_average and can_average else {}
        try:
            computed = metric.compute(**inputs, **options)
        except Exception as error:  # whatever the metric raises
            remedy = "give a metric for predictions and references of this kind"
            raise InputError(f"fails on these rows: {first_line(error)}", where=metric.name, remedy=remedy) from None
        for name, value in (computed or {}).items():
            if isinstance(value, int | float | np.number):
                results[f"{metric.name}_{name}" if name in results else name] = float(value)
    return results


def run_network(head: Head, network: Any, features: datasets.Dataset) -> tuple[Kept, np.ndarray | None]:
    """Run a network over features without dropout, in batches of similar lengths; the results are in their order.

    Returns:
        What `head.keep` kept, (F, …); and (F, 2) the sum and the number of each feature's losses, None without labels.
    """
    feature_list: list[Any] = features.to_list()
    device = next(network.parameters()).device
    was_training = network.training  # `FineTuner.predict` may be called during a training
    network.eval()

    def compute_batch(indices: list[int]) -> Iterator[tuple[np.ndarray, ...]]:
        """Return for each feature what is kept of it and, last, its losses if it has labels."""
        batch = with_layout(network, head.collate([feature_list[index] for index in indices]))
        batch = {name: values.to(device) for name, values in batch.items()}
        with inference_autocast(device, head.given.get("bf16")):
            outputs = head.forward(network, batch)
        kept = head.keep(batch, outputs)
        columns = [*kept] if isinstance(kept, tuple) else [kept]
        if "labels" in batch:
            columns.append(losses_and_counts(head, batch, outputs))
        return zip(*(column.cpu().numpy() for column in columns), strict=True)

    tokens_per_batch = 4_096 if device.type == "cpu" else 65_536  # an accelerator needs more to be busy
    with without_padding(network) if device.type == "cuda" else contextlib.nullcontext():
        results = run_by_length(features["length"], compute_batch, tokens=tokens_per_batch)
    network.train(was_training)
    columns = [_stack_padded(column) for column in zip(*results, strict=True)]
    losses = columns.pop() if "labels" in features.column_names else None
    return columns[0] if len(columns) == 1 else tuple(columns), losses


def losses_and_counts(head: Head, inputs: dict[str, Tensor], outputs: Any) -> Tensor:
    """Return (B, 2) for each feature the sum of its losses, and the number of its labels."""
    return torch.stack([head.losses(inputs, outputs), count_labels(inputs["labels"]).float()], 1)


def _stack_padded(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return a stack of arrays that may differ in the size of their first axis; shorter ones are padded with -100."""
    if not arrays[0].ndim:  # numbers, which `pad_sequence` does not take
        return np.stack(arrays)
    return pad_sequence(list(map(torch.from_numpy, arrays)), batch_first=True, padding_value=-100).numpy()
