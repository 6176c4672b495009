"""Sums and counts behind the pre-training losses, from which mean losses and accuracies are computed.

A batch has two tasks: the masked tokens, with one loss per masked token, and the label of the objective (next
sentence), with one loss per pair.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bert_hf.errors import InputError
from bert_hf.models.functional import IGNORE_INDEX, losses_and_correct
from bert_hf.models.modeling_bert import PreTrainingLosses

LABELS = ("labels", "next_sentence_label")  # where a batch has the labels of its two tasks


class TaskLosses(NamedTuple):
    """One task in one batch. N predictions: the masked tokens, or the pairs."""

    losses: Tensor  # (N,) nats, fp32, 0 without a label
    counted: Tensor  # (N,) bool, true with a label
    correct: Tensor  # (N,) bool
    rows: Tensor  # (N,) which row of the batch each belongs to

    def sums(self, dtype: torch.dtype) -> Tensor:
        """Return (3,) sum of the losses, number of labels, number of correct predictions."""
        return torch.stack([x.sum().to(dtype) for x in (self.losses, self.counted, self.correct)])

    def sums_of_rows(self, batch_size: int, dtype: torch.dtype) -> Tensor:
        """Return (B, 3) the same sums for each row of the batch."""
        columns = torch.stack([x.to(dtype) for x in (self.losses, self.counted, self.correct)], 1)  # (N, 3)
        return columns.new_zeros(batch_size, 3).index_add_(0, self.rows, columns)


def sum_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of sums of losses: float64, or float32 (six digits) where a device may lack it (MPS, XPU)."""
    return torch.float64 if device.type in ("cpu", "cuda") else torch.float32


def count_targets(batches: list[dict]) -> Tensor:
    """Return (2,) the numbers of masked tokens and of sequence pairs in batches, on the device of the batches."""
    counts = torch.zeros(2, dtype=torch.int64)
    for batch in batches:
        for task, name in enumerate(LABELS):
            if batch.get(name) is not None:
                counts = counts.to(batch[name].device)
                counts[task] += (batch[name] != IGNORE_INDEX).sum()
    return counts


def with_masked_positions(inputs: dict) -> dict:
    """Return a batch with the `masked_positions` of its `labels`, if any; a stock collator does not send them."""
    if inputs.get("labels") is None or inputs.get("masked_positions") is not None:
        return inputs
    positions = (inputs["labels"].flatten() != IGNORE_INDEX).nonzero().squeeze(1)
    return {**inputs, "masked_positions": positions}


def losses_of_logits(outputs: Any, inputs: dict, model_name: str) -> PreTrainingLosses:
    """Compute losses of masked tokens (M,) and pairs (B,) from full logits; without these raise an `InputError`."""
    losses = PreTrainingLosses()
    labels, pair_labels = map(inputs.get, LABELS)
    labels_of_logits = {"prediction_logits": labels, "seq_relationship_logits": pair_labels}
    missing = [name for name, values in labels_of_logits.items() if values is not None and name not in outputs]
    if missing:
        remedy = "pass a BertForPreTraining, bert_hf's or transformers'"
        raise InputError(f"{model_name} returns no {missing[0]}", where="PreTrainer", remedy=remedy)

    if labels is not None:
        positions = inputs["masked_positions"]
        logits = outputs["prediction_logits"].flatten(0, 1)[positions]  # (M, V)
        losses.mlm_losses, losses.mlm_correct = losses_and_correct(logits, labels.flatten()[positions])
    if pair_labels is not None:
        logits = outputs["seq_relationship_logits"]  # (B, 2)
        losses.nsp_losses, losses.nsp_correct = losses_and_correct(logits, pair_labels.flatten())
    return losses


def losses_by_task(inputs: dict, losses: PreTrainingLosses) -> list[TaskLosses]:
    """Return the losses of a batch's masked tokens, and of its pairs; a task without labels has none (N = 0)."""
    empty = inputs["input_ids"].new_zeros(0)
    tasks = [TaskLosses(empty.float(), empty, empty, empty)] * 2
    labels, pair_labels = map(inputs.get, LABELS)

    if labels is not None and losses.mlm_losses is not None and losses.mlm_correct is not None:
        positions = inputs["masked_positions"]
        counted = labels.flatten()[positions] != IGNORE_INDEX
        tasks[0] = TaskLosses(losses.mlm_losses, counted, losses.mlm_correct, positions // labels.shape[1])
    if pair_labels is not None and losses.nsp_losses is not None and losses.nsp_correct is not None:
        counted = pair_labels.flatten() != IGNORE_INDEX
        rows = torch.arange(len(counted), device=counted.device)
        tasks[1] = TaskLosses(losses.nsp_losses, counted, losses.nsp_correct, rows)
    return tasks


def row_lengths(inputs: dict) -> Tensor:
    """Return (B,) the number of tokens of each row without padding."""
    if inputs.get("attention_mask") is not None:
        return inputs["attention_mask"].sum(1)
    rows, width = inputs["input_ids"].shape
    return torch.full((rows,), width, device=inputs["input_ids"].device)


def mean_metrics(sums: Sequence[float] | np.ndarray, prefixes: Sequence[str]) -> dict[str, float]:
    """Return mean loss (nats) and accuracy per task with labels, from its `TaskLosses.sums`; `loss` adds losses."""
    metrics = {"loss": 0.0}
    for prefix, (total, count, correct) in zip(prefixes, np.reshape(sums, (-1, 3)).tolist(), strict=True):
        if count:
            metrics[f"{prefix}_loss"] = total / count
            metrics[f"{prefix}_accuracy"] = correct / count
            metrics["loss"] += total / count
    return metrics
