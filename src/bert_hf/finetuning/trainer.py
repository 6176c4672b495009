"""Fine-tuning by transformers' Trainer: the network of a task, its defaults, exact loss, predictions in row order."""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import SequentialSampler
from transformers import BertConfig, PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput, set_seed

from bert_hf.config.training_arguments import FineTuningArguments, resolve_by_features, resolve_by_width
from bert_hf.console import logger
from bert_hf.data.text.sources import dataset_rows
from bert_hf.data.text.tokenization import check_tokenizer
from bert_hf.errors import InputError, check_known
from bert_hf.finetuning.heads.head import (
    TRAINED_ON,
    Head,
    Kept,
    compute_further_metrics,
    losses_and_counts,
    run_network,
)
from bert_hf.finetuning.losses import count_labels
from bert_hf.finetuning.metrics.classification import LOWER_IS_BETTER
from bert_hf.finetuning.predict import Predictor, rows_of_texts
from bert_hf.finetuning.rows.splits import take
from bert_hf.finetuning.tasks.task import Task, task_of_rows
from bert_hf.models.loading import check_positions, config_errors, find_checkpoint, load_network, read_safe_json
from bert_hf.models.unpadded_encoder import with_layout, without_padding
from bert_hf.training.log_lines import use_log_lines
from bert_hf.training.repeated_rows import without_repeated_rows
from bert_hf.training.resumable_trainer import ResumableTrainer

_TRIED_ROWS = 8
_FEW_ROWS = 200  # with fewer validation rows, a metric that counts rows is too coarse to choose weights by


def selection_metric(args: TrainingArguments) -> str:
    """Return the model selection metric as Trainer logs it, such as `eval_f1`."""
    return f"eval_{str(args.metric_for_best_model or 'loss').removeprefix('eval_')}"


def check_further_metrics(task: Task, network: nn.Module, args: TrainingArguments) -> None:
    """Check, on a few rows and before hours of training, that --metric_name works and gives the selection metric."""
    if not task.further:
        return
    head, train = task.head, task.parts["train"]
    rows = take(train, np.arange(min(_TRIED_ROWS, len(train))))
    encoded = head.encode(rows)
    kept, _ = run_network(head, network.to(args.device), encoded.features)
    further = compute_further_metrics(head, rows, head.decode(rows, encoded, kept), task.further)

    best = selection_metric(args).removeprefix("eval_")
    names = (*head.metric_names(), "loss", *further)
    check_known(best, names, f"no metric {best!r}", "--metric_for_best_model")


def resolve_defaults(args: FineTuningArguments, task: Task, hidden_size: int | None) -> str:
    """Set in `args` learning rate, epochs, evaluations and selection metric, if not given; return a line on this one.

    With few validation rows many evaluations have an equal metric, and the first of them is far from the best model;
    the loss distinguishes them. (A tie of larger parts goes to the lower loss: `FineTuner`.)
    """
    resolve_by_width(args, hidden_size)
    resolve_by_features(args, len(task.encoded("train").features), task.task_args.min_steps)
    rows = len(task.parts["validation"])
    if args.load_best_model_at_end and not args.best_metric_is_given:
        args.metric_for_best_model = "loss" if rows < _FEW_ROWS else task.head.metric_names()[0]
    metric = selection_metric(args).removeprefix("eval_")
    if not args.direction_is_given:
        args.greater_is_better = not metric.endswith(LOWER_IS_BETTER)
    if not args.load_best_model_at_end:
        return "the last weights are kept"
    return f"the best {metric} on {rows:,} validation rows decides"


def load_task_model(task: Task, seed: int) -> tuple[PreTrainedModel, str]:
    """Return the head's stock class on a checkpoint, or from scratch on its shape, and a line on the head's weights.

    The checkpoint's own head is trained further where it is of the same kind and classes (`task.new_head`); the names
    of its random weights are noted in `task.random_weights`.
    """
    task_args, head = task.task_args, task.head
    stock_class = head.start_class or head.auto_class
    where = str(task_args.model_name_or_path)
    set_seed(seed)
    folder = find_checkpoint(where, weights=not task_args.from_scratch)
    with config_errors(where, "correct config.json, or give a complete BERT checkpoint"):
        config = BertConfig.from_pretrained(folder, **head.config_options())
        if task_args.from_scratch:
            model = stock_class.from_config(config, dtype=torch.float32)
            about = "random weights: only the checkpoint's shape and vocabulary are used"
        else:
            model, missing = load_network(stock_class, folder, where, head.new_layers, config=config)
            replaced = _reinitialize_head(model, missing) if task.new_head else []
            task.random_weights = sorted([*missing, *replaced])
            about = f"newly initialized: {', '.join(task.random_weights)}"
            if replaced or (task.new_head and head.suits(config.to_dict())):
                about += f"; {task.new_head}"  # why the layers that the checkpoint has are not used
            elif not missing:  # all layers are the checkpoint's
                about = task.describe_head()

    check_positions(task_args.max_seq_length, config.max_position_embeddings, where)
    check_tokenizer(task.tokenizer, config.vocab_size)
    return model, about


def _reinitialize_head(model: PreTrainedModel, missing: list[str]) -> list[str]:
    """Overwrite the head's weights from the checkpoint with new random ones; return their names, without `missing`."""
    if model.base_model is model:  # the encoder, without a head
        return []
    encoder = f"{model.base_model_prefix}."
    names = [name for name, _ in model.named_parameters() if not name.startswith(encoder) and name not in missing]
    with torch.no_grad():
        for weight in map(model.get_parameter, names):
            weight.zero_() if weight.ndim == 1 else weight.normal_(0, model.config.initializer_range)
    return names


class FineTuner(ResumableTrainer):
    """Trainer of a head on labelled rows, with the exact loss of the global batch.

        >>> tuner = FineTuner("runs/pretrain-default", train_dataset=rows, head="classification")
        >>> tuner.train()
        >>> tuner.predict(["You won a prize!"])
        [{'label': 'spam', 'score': 0.99}]

    The loss of an optimizer step is the sum of the losses of all labels over their number, both over accumulation
    steps (the last, smaller group included) and ranks. `eval_loss` is the same mean over all labels of the part.

    Evaluation batches are sorted by length, so that they hold little padding; predictions come back in the order of
    the features. Ties in the metric go to the evaluation with the lower loss.

    Args:
        model: folder or Hub id of a checkpoint, or a network with the head.
        args: options of the run; by default `FineTuningArguments()`.
        train_dataset, eval_dataset: labelled rows, as `datasets` gives them. Without `eval_dataset` validation rows
            are split off.
        head: name of the head (`finetuning/heads`), or a class of one's own; not needed with `task`.
        task: rows and head, in place of both datasets and `head`.
        data_collator: makes batches of features; by default the head's.
        processing_class: the tokenizer; by default the checkpoint's.
        metrics: metrics of the `evaluate` library in addition to the head's own: names, or metrics.
        callbacks: as of `Trainer`.
        facts: JSON entries for each checkpoint's manifest.
        options: options of the task by name: `text_column`, `max_seq_length`, …
    """

    loss_is_scaled_for_ga = True  # `compute_loss` returns a share of the loss of the global batch

    def __init__(
        self,
        model: nn.Module | str | Path,
        args: FineTuningArguments | None = None,
        *,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        head: str | type[Head] | None = None,
        task: Task | None = None,
        data_collator: Callable | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        metrics: Sequence[Any] = (),
        callbacks: list[TrainerCallback] | None = None,
        facts: dict | None = None,
        **options: Any,
    ):
        parts = {"train": train_dataset, "validation": eval_dataset}
        task = task or task_of_rows(model, parts, head or "classification", processing_class, metrics, options)
        # Copies: another trainer may be given the same objects
        args = FineTuningArguments() if args is None else copy.copy(args)
        self.task = copy.copy(task)
        self.task.head = self.head = copy.copy(task.head)
        self.task.parts = dict(task.parts)

        if isinstance(model, str | Path):
            any_task: Any = self.task
            network: PreTrainedModel = load_task_model(any_task, args.seed)[0]
            if getattr(any_task.task_args, "feature_based", None):  # of words: BERT is frozen
                network = any_task.make_frozen_network(network, args)[0]
            model = network
        if isinstance(args, FineTuningArguments):
            resolve_defaults(args, self.task, getattr(getattr(model, "config", None), "hidden_size", None))
        elif selection_metric(args).endswith(LOWER_IS_BETTER):
            args.greater_is_better = False  # the stock class takes only losses as lower is better
        args.remove_unused_columns = False  # the head may need columns that the network does not take
        args.batch_eval_metrics, args.eval_do_concat_batches = False, True  # metrics are of all rows
        tokenizer = copy.copy(processing_class or task.tokenizer)
        tokenizer.model_max_length = self.head.length  # saved: longer inputs reach new positions
        self.head.attach(model)

        self._parts: dict[str, _SortedPart] = {}  # filled by `_sorted_part`
        self.kept: dict[str, Kept] = {}  # by part: what the head kept in the latest evaluation
        self.validation_metrics: dict[str, float] = {}  # of the weights that are kept, after the training
        super().__init__(
            model, args, data_collator or self.head.collate, self.task.encoded("train").features,
            self._sorted_part("validation").features, tokenizer, callbacks=callbacks, facts=facts,
        )  # fmt: skip
        self.model_accepts_loss_kwargs = False  # `compute_loss` counts; `super()` set it by the network's `forward`
        use_log_lines(self)
        self._record_options()  # here, because `self.network` exists only now

    def _record_options(self) -> None:
        """Write classes, thresholds and options into the network's configuration; raise if its outputs are others."""
        config: Any = getattr(self.network, "config", None)  # a network of one's own may have none
        if config is None:
            return
        options = self.head.config_options()
        classes = len(options.get("id2label", config.id2label))
        if classes != config.num_labels:
            what = f"the network has {config.num_labels} outputs, the rows {classes} classes"
            raise InputError(what, where="FineTuner", remedy="pass the checkpoint's name, or num_labels to the model")
        config.update({**options, **self.head.record()})

    def on_device(self, batch: dict) -> dict[str, Any]:
        """Return a batch on the device, with the positions of its real tokens if the encoder is unpadded."""
        return super().on_device(with_layout(self.network, batch))

    # ---- loss

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device) -> Any:
        """Return the micro-batches of a step as Trainer does, without the rows that accelerate repeats at the end."""
        return super().get_batch_samples(without_repeated_rows(self, epoch_iterator), num_batches, device)

    def count_items(self, batches: list[dict]) -> Tensor:
        """Return () the number of labels in an optimizer step, each times its weight, over all batches and ranks."""
        labels = [batch["labels"] for batch in batches]
        counts = [(count_labels(each) * self.head.label_weights(each)).sum() for each in labels]
        return self.sum_over_ranks(self.to_device(torch.stack(counts).sum()))

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch: Any = None) -> Any:
        """Return the share of this micro-batch in the step's loss, times the ranks, which average the gradients."""
        if num_items_in_batch is None:
            num_items_in_batch = self.count_items([inputs])
        outputs = self.head.forward(model, inputs)
        losses = self.head.losses(inputs, outputs, self.args.label_smoothing_factor)
        losses = losses * self.head.label_weights(inputs["labels"])
        loss = losses.sum() / num_items_in_batch.clamp(min=1e-9) * self.args.world_size
        return (loss, outputs) if return_outputs else loss

    # ---- evaluation

    def _sorted_part(self, part: str) -> "_SortedPart":
        """Return the features of a part, longest first; the same object each time, by which they are recognised."""
        if part not in self._parts:
            features = self.task.encoded(part).features
            indices = np.argsort(-np.asarray(features["length"]), kind="stable")
            self._parts[part] = _SortedPart(features.select(indices), indices)
        return self._parts[part]

    def _get_eval_sampler(self, eval_dataset: Any) -> SequentialSampler:
        return SequentialSampler(eval_dataset)  # sorted already: --train_sampling_strategy is of the training

    @torch.no_grad()
    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None) -> Any:
        """Return, in place of logits, what the head keeps of the outputs and, with labels, `losses_and_counts`."""
        inputs = self.on_device(inputs)
        with self.compute_loss_context_manager():
            outputs = self.head.forward(model, inputs)
        kept = self.head.keep(inputs, outputs)
        if inputs.get("labels") is None:
            return None, (kept,), None
        return None, (kept, losses_and_counts(self.head, inputs, outputs)), None

    def evaluation_loop(
        self, dataloader, description, prediction_loss_only=None, ignore_keys=None, metric_key_prefix="eval"
    ) -> EvalLoopOutput:
        """Evaluate a part by the task's metrics; note in `kept` what the head kept, in the order of the features."""
        part = next((part for part, each in self._parts.items() if each.features is dataloader.dataset), None)
        if part is None:  # rows whose order and labels the task does not know
            raise InputError("not rows of the task", where="dataset", remedy="pass rows to `evaluate` or `predict`")
        output: Any = super().evaluation_loop(dataloader, description, False, ignore_keys, metric_key_prefix)
        kept, *losses = (self._parts[part].in_task_order(each) for each in output.predictions)
        self.kept[part] = kept

        metrics = {}
        if losses:
            metrics = self.task.metrics(part, kept, losses[0])
            self._record_options()  # the validation rows may have decided a threshold
            names = (*self.head.metric_names(), *metrics)  # the task's main metric comes first
            metrics = {name: metrics[name] for name in dict.fromkeys(names) if name in metrics}
        prefixed = {f"{metric_key_prefix}_{name}": float(value) for name, value in metrics.items()}
        return output._replace(predictions=kept, metrics={**(output.metrics or {}), **prefixed})

    def evaluate(self, eval_dataset: Any = None, ignore_keys=None, metric_key_prefix="eval") -> dict[str, float]:
        """Return the metrics of the validation rows, of a part's features, or of other rows, as a new part "rows"."""
        if eval_dataset is None or any(eval_dataset is part.features for part in self._parts.values()):
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        self.task.add_part("rows", dataset_rows(eval_dataset))
        self._parts.pop("rows", None)
        features: Any = self._sorted_part("rows").features
        return super().evaluate(features, ignore_keys, metric_key_prefix)

    def predict(self, test_dataset: Any, ignore_keys=None, metric_key_prefix: str = "test") -> Any:
        """Return what `bert_hf.predict` returns for texts; of a part's features, what `Trainer.predict` returns."""
        if any(test_dataset is part.features for part in self._parts.values()):
            return super().predict(test_dataset, ignore_keys, metric_key_prefix)
        rows, columns = rows_of_texts(test_dataset)
        head = type(self.head)(self.processing_class, columns, self.network.config)
        return Predictor(self.network, head)(rows)

    def predict_part(self, part: str, prefix: str) -> dict[str, float]:
        """Predict a part's rows, which sets `kept`; return metrics named `PREFIX_…` (only of speed without labels)."""
        return self.predict(self._sorted_part(part).features, metric_key_prefix=prefix).metrics or {}

    def train(self, *args, **named) -> Any:
        """Train as `Trainer.train` does; then decide by the validation rows and set their metrics (`validate`)."""
        self.task.forget_decisions()  # of an earlier call
        check_further_metrics(self.task, self.network, self.args)
        sharded = self.is_deepspeed_enabled or self.is_fsdp_enabled  # then the engine keeps weights of its own
        features = self.task.encoded("train").features
        self.head.begin_training(None if sharded else self.network, features, bool(self.task.new_head))
        if not sharded:
            self._record_options()  # the scale of the labels, for the checkpoints
        # Sharded weights and other devices are run by the stock encoder
        keeps_padding = sharded or self.args.device.type not in ("cpu", "cuda")
        with contextlib.nullcontext() if keeps_padding else without_padding(self.network):
            trained = super().train(*args, **named)
        if not sharded:
            self.head.end_training(self.network)  # not after an interruption: the resumed run needs the scale
            self._record_options()  # without the scale, which is now in the weights
        self.task.new_head = ""  # a further call trains these layers on
        self.validate(None if sharded else self.network)
        return trained

    def begin(self, checkpoint: str | None) -> None:
        """Begin as the base class does; a resumed run takes the scale of a regression's labels from its checkpoint."""
        super().begin(checkpoint)
        if checkpoint is not None and (config := Path(checkpoint, "config.json")).is_file():
            self.head.resume(read_safe_json(config).get(TRAINED_ON) or {})
            self._record_options()

    def validate(self, network: nn.Module | None) -> None:
        """Set `validation_metrics` of the weights that are kept, after the task decided by the validation rows.

        They are logged only where the last weights are kept and were not evaluated yet: otherwise the curve of the run
        would end in a second value for its last step, perhaps of other weights. Without a network no weights change.
        """
        logged = any("eval_loss" in log and log["step"] == self.state.global_step for log in self.state.log_history)
        keeps_log = logged or self.args.load_best_model_at_end
        self.validation_metrics = self.predict_part("validation", "eval") if keeps_log else self.evaluate()

        if decisions := self.task.decide(self.kept["validation"], network):
            logger.info("\n".join(decisions))
            self.validation_metrics = self.predict_part("validation", "eval")

    # ---- the best evaluation

    def _load_best_model(self) -> None:
        super()._load_best_model()
        if self.head.threshold is not None:  # the one of the last weights: an evaluation sets that of the best ones
            self.predict_part("validation", "eval")

    def _determine_best_metric(self, metrics: dict[str, float], trial) -> bool:
        """Return whether a metric is the best so far, and note its step; of equal ones the lower loss is better."""
        best = self.state.best_metric
        better = super()._determine_best_metric(metrics, trial)
        tied = best is not None and metrics.get(selection_metric(self.args)) == best
        losses: dict = {log["step"]: log["eval_loss"] for log in self.state.log_history if "eval_loss" in log}
        if tied and not better and metrics["eval_loss"] < losses.get(self.state.best_global_step, math.inf):
            better = True  # what the stock method sets then, also here
            self.state.best_global_step = self.state.global_step
            self.control.should_save |= self.args.load_best_model_at_end
        return better


class _SortedPart(NamedTuple):
    """The features of a part, longest first, and the index of each in `task.encoded`."""

    features: datasets.Dataset
    indices: np.ndarray

    def in_task_order(self, values: Any) -> Any:
        """Return arrays, or tuples of them, with one entry per feature, reordered as in `task.encoded`."""
        if isinstance(values, tuple | list):
            return tuple(map(self.in_task_order, values))
        return values[np.argsort(self.indices)]
