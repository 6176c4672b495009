"""transformers' Trainer for the tasks of fine-tuning: exact loss for each head, and predictions in the rows' order."""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import datasets
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import SequentialSampler
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput

from bert_hf.config.finetuning_arguments import FineTuningArguments, resolve_by_rows, resolve_by_width
from bert_hf.console import logger
from bert_hf.errors import InputError
from bert_hf.finetuning.losses import count_labels
from bert_hf.finetuning.task import TRAINED_ON, Arrays, DownstreamTask
from bert_hf.models.unpadded_encoder import add_layout, without_padding
from bert_hf.training.exact_backward import exact_training_step, without_repeated_rows
from bert_hf.training.log_lines import use_log_lines
from bert_hf.training.resumable_trainer import ResumableTrainer

_FEW_ROWS = 200  # with fewer validation rows, a metric that counts rows is too coarse to choose weights by


def selection_metric(args: TrainingArguments) -> str:
    """The model selection metric as Trainer logs it, such as `eval_f1`."""
    return f"eval_{str(args.metric_for_best_model or 'loss').removeprefix('eval_')}"


def resolve_defaults(args: FineTuningArguments, task: DownstreamTask, hidden_size: int | None) -> str:
    """Sets learning rate, epochs, evaluations and the metric of the best weights where they are not given.

    Returns a line on what decides which weights are kept.
    """
    resolve_by_width(args, hidden_size)
    resolve_by_rows(args, task.inputs_per_epoch(), task.task_args.min_steps)
    return choose_best_metric(args, task)


def choose_best_metric(args: FineTuningArguments, task: DownstreamTask) -> str:
    """Sets the default of --metric_for_best_model.

    With few validation rows many evaluations have an equal metric, and the first of them is far from the best model;
    the loss distinguishes them. (A tie of larger parts goes to the lower loss: `FineTuner`.)
    """
    rows = len(task.parts.get("validation", ()))
    if not args.load_best_model_at_end:
        return "the last weights are kept"
    if not args.best_metric_is_given:
        args.metric_for_best_model = "loss" if rows < _FEW_ROWS else task.metric_names(task.task_args)[0]
    metric = selection_metric(args).removeprefix("eval_")
    if not args.direction_is_given:
        args.greater_is_better = not metric.endswith("loss")
    return f"the best {metric} on {rows:,} validation rows decides"


class EarlyStop(TrainerCallback):
    """Stateless early stopping: counts evaluations without improvement in the log."""

    def __init__(self, patience: int):
        self.patience = patience

    def on_evaluate(self, args, state, control, **kwargs) -> None:
        """Called before Trainer compares the metric with the best one, so all evaluations are compared here."""
        metric = selection_metric(args)
        sign = 1 if args.greater_is_better else -1
        by_step = {log["step"]: (sign * log[metric], -log["eval_loss"]) for log in state.log_history if metric in log}

        evaluations = [by_step[step] for step in sorted(by_step)]
        best = evaluations.index(max(evaluations))
        if len(evaluations) - 1 - best >= self.patience:
            control.should_training_stop = True


class FineTuner(ResumableTrainer):
    """Trainer of a `DownstreamTask`, with the exact loss of the global batch.

    The loss of an optimizer step is the sum of the losses of all labels over their number, both over accumulation
    steps (the last, smaller group included) and ranks. `eval_loss` is the same mean over all labels of the part.

    Evaluation batches are sorted by length, so that they hold little padding; predictions come back in the order of
    the features. Ties in the metric go to the evaluation with the lower loss.
    """

    def __init__(
        self,
        model: nn.Module,
        args: FineTuningArguments,
        collator: Callable,
        task: DownstreamTask,
        processing_class: PreTrainedTokenizerBase,
        callbacks: list[TrainerCallback] | None = None,
        facts: dict | None = None,
    ):
        # Copies: another trainer may be given the same objects
        self.task = task = copy.copy(task)
        args, processing_class = copy.copy(args), copy.copy(processing_class)
        if isinstance(args, FineTuningArguments):
            resolve_defaults(args, task, getattr(getattr(model, "config", None), "hidden_size", None))
        self._parts: dict[str, _SortedPart] = {}
        self.kept: dict[str, Arrays] = {}  # by part: what `reduce` kept in the latest evaluation
        self.validation_metrics: dict[str, float] = {}  # of the weights that are kept, after the training
        args.remove_unused_columns = False  # `reduce` may need columns that the network does not take
        processing_class.model_max_length = task.task_args.max_seq_length  # saved: longer inputs reach new positions

        super().__init__(
            model, args, collator, task.encoded("train"),
            self._sorted_part("validation").features if "validation" in task.parts else None,
            processing_class, callbacks=callbacks, facts=facts,
        )  # fmt: skip
        if task.task_args.early_stopping_patience is not None:
            self.add_callback(EarlyStop(task.task_args.early_stopping_patience))
        use_log_lines(self)
        self._record_options()

    def _record_options(self) -> None:
        """Writes into the network's configuration how rows become inputs, for predictions."""
        config: Any = getattr(self.network, "config", None)
        if config is not None:
            options = self.task.chosen_options()
            length = {"max_seq_length": self.task.task_args.max_seq_length}
            config.update({**options, TRAINED_ON: {**options.get(TRAINED_ON, {}), **length}})

    def _prepare_inputs(self, inputs: dict) -> dict:
        return super()._prepare_inputs(add_layout(self.network, inputs))

    # ---- loss

    def forward_backward(self, model: nn.Module, inputs: dict, num_items_in_batch=None) -> Tensor:
        return exact_training_step(self, super().forward_backward, model, inputs, num_items_in_batch)

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device) -> Any:
        return super().get_batch_samples(without_repeated_rows(self, epoch_iterator), num_batches, device)

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> Tensor:
        """Labels of the optimizer step with their weights, over all micro-batches and ranks."""
        labels = [batch["labels"] for batch in batch_samples]
        counts = [(count_labels(each) * self.task.label_weights(each)).sum() for each in labels]
        return self.sum_over_ranks(self._prepare_input(torch.stack(counts).sum()))

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch: Any = None) -> Any:
        """Share of this micro-batch in the loss of the optimizer step, times the ranks that average gradients."""
        if num_items_in_batch is None:
            num_items_in_batch = self._get_num_items_in_batch([inputs], self.args.device)
        outputs = model(**self._network_inputs(inputs))
        losses = self.task.losses(inputs, outputs, self.args.label_smoothing_factor)
        losses = losses * self.task.label_weights(inputs["labels"])
        loss = losses.sum() / num_items_in_batch.clamp(min=1e-9) * self.args.world_size
        return (loss, outputs) if return_outputs else loss

    def _network_inputs(self, inputs: dict) -> dict:
        others = ("labels", "length", *self.task.extra_columns)
        return {name: value for name, value in inputs.items() if name not in others}

    # ---- evaluation

    def _sorted_part(self, part: str) -> "_SortedPart":
        if part not in self._parts:
            features = self.task.encoded(part)
            numbers = np.argsort(-np.asarray(features["length"]), kind="stable")
            self._parts[part] = _SortedPart(features.select(numbers), numbers)
        return self._parts[part]

    def _get_eval_sampler(self, eval_dataset: Any) -> SequentialSampler:
        return SequentialSampler(eval_dataset)  # it is sorted

    @torch.no_grad()
    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None) -> Any:
        """Returns the outputs that the task keeps, (B, 2) sum and number of each feature's losses, and the labels."""
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            outputs = model(**self._network_inputs(inputs))
        reduced = self.task.reduce(inputs, outputs)

        labels = inputs.get("labels")
        if labels is None:
            return None, (reduced,), None
        losses = torch.stack([self.task.losses(inputs, outputs), count_labels(labels).float()], 1)
        return None, (reduced, losses), labels

    def evaluation_loop(
        self, dataloader, description, prediction_loss_only=None, ignore_keys=None, metric_key_prefix="eval"
    ) -> EvalLoopOutput:
        name = next((name for name, part in self._parts.items() if part.features is dataloader.dataset), None)
        if name is None:  # rows whose order and labels the task does not know
            raise InputError("not a part of the task", where="dataset", remedy='use predict_part("test", "test")')
        part = self._parts[name]
        output: Any = super().evaluation_loop(dataloader, description, False, ignore_keys, metric_key_prefix)
        kept, *losses = (part.restored(each) for each in output.predictions)
        self.kept[name] = kept

        metrics = {}
        if losses:
            total, count = np.asarray(losses[0], dtype=np.float64).sum(axis=0)
            labels = part.restored(output.label_ids)
            metrics = {"loss": total / max(1.0, count), **self.task.evaluate(name, kept, labels)}
            self._record_options()  # the validation rows may have decided one
            order = [name for name in self.task.metric_names(self.task.task_args) if name in metrics]
            metrics = {name: metrics[name] for name in order} | metrics  # the task's main metric comes first
        prefixed = {f"{metric_key_prefix}_{name}": float(value) for name, value in metrics.items()}
        return output._replace(predictions=kept, metrics={**(output.metrics or {}), **prefixed})

    def predict_part(self, part: str, prefix: str) -> dict[str, float]:
        """Predicts the rows of any part (`kept`), and returns its metrics under `prefix`; none without labels."""
        features: Any = self._sorted_part(part).features
        return self.predict(features, metric_key_prefix=prefix).metrics or {}

    def train(self, *args, **named) -> Any:
        """Trains, and lets the task choose by the validation rows: see `validate`."""
        self.task.begin()
        sharded = self.is_deepspeed_enabled or self.is_fsdp_enabled  # then the engine keeps weights of its own
        dense = sharded or self.args.device.type not in ("cpu", "cuda")
        with contextlib.nullcontext() if dense else without_padding(self.network):
            trained = super().train(*args, **named)
        if "validation" in self.task.parts:
            self.validate(None if sharded else self.network)
        return trained

    def validate(self, network: nn.Module | None) -> None:
        """Sets `validation_metrics`: of the weights that are kept, with what the task decides by these rows.

        They are logged only where the last weights are kept and were not evaluated yet: otherwise the curve of the run
        would end in a second value for its last step, which may be that of other weights.

        Args:
            network: None: its weights do not change.
        """
        step = self.state.global_step
        logged = any("eval_loss" in log and log["step"] == step for log in self.state.log_history)
        if logged or self.args.load_best_model_at_end:
            self.validation_metrics = self.predict_part("validation", "eval")
        else:
            self.validation_metrics = self.evaluate()

        if decisions := self.task.decide(self.kept["validation"], network):
            logger.info("\n".join(decisions))
            self.validation_metrics = self.predict_part("validation", "eval")

    # ---- the best evaluation

    def _load_best_model(self) -> None:
        super()._load_best_model()
        if self.task.threshold is not None:  # that of the last evaluation, not of these weights
            self.predict_part("validation", "eval")

    def _determine_best_metric(self, metrics: dict[str, float], trial) -> bool:
        """As in the base class; of equal metrics the one with the lower loss is better."""
        best = self.state.best_metric
        better = super()._determine_best_metric(metrics, trial)
        tied = best is not None and metrics.get(selection_metric(self.args)) == best
        losses: dict = {log["step"]: log["eval_loss"] for log in self.state.log_history if "eval_loss" in log}
        if tied and not better and metrics["eval_loss"] < losses.get(self.state.best_global_step, math.inf):
            better = True
            self.state.best_global_step = self.state.global_step
            self.control.should_save |= self.args.load_best_model_at_end
        return better


class _SortedPart(NamedTuple):
    """The features of a part, longest first, and the number in `task.encoded` of each."""

    features: datasets.Dataset
    numbers: np.ndarray

    def restored(self, values: Any) -> Any:
        """Arrays (or tuples of them) with one entry per feature, in the order of `task.encoded`."""
        if isinstance(values, tuple | list):
            return tuple(self.restored(each) for each in values)
        restored = np.empty_like(values)
        restored[self.numbers] = values
        return restored
