"""Counts what the two losses of pre-training are means of, and computes mean losses and accuracies from the counts."""

from functools import cache

import torch
from torch import Tensor

from bert_hf.models.functional import IGNORE_INDEX, losses_and_correct
from bert_hf.models.modeling_bert import PreTrainingLosses

# Sums over masked tokens, sequence pairs and real tokens; losses in nats, `squares` of the rows' lengths.
COUNTS: tuple[str, ...] = ("mlm_sum", "masked", "mlm_correct", "nsp_sum", "pairs", "nsp_correct", "tokens", "squares")
PER_EXAMPLE = COUNTS[:6]


@cache
def sum_dtype(device: torch.device) -> torch.dtype:
    """float64, or float32 where the device cannot add float64, which is tried; means are then exact to six digits."""
    try:
        torch.ones(2, dtype=torch.float64, device=device).sum().add(1.0)
    except (RuntimeError, TypeError):  # XPU without fp64, MPS
        return torch.float32
    return torch.float64


def count_targets(batches: list[dict], device: torch.device) -> Tensor:
    """(2,) masked tokens and sequence pairs in batches."""
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    for batch in batches:
        for place, name in enumerate(("labels", "next_sentence_label")):
            if batch.get(name) is not None:
                counts[place] += (batch[name].to(device) != IGNORE_INDEX).sum()
    return counts


def losses_of_logits(
    outputs, labels: Tensor | None, next_sentence_label: Tensor | None, positions: Tensor | None
) -> PreTrainingLosses:
    """Losses from the full logits of a stock model, at the masked positions (M,) alone."""
    losses = PreTrainingLosses()
    if labels is not None:
        logits = outputs["prediction_logits"].flatten(0, 1)[positions]  # (M, V)
        losses.mlm_losses, losses.mlm_correct = losses_and_correct(logits, labels.flatten()[positions])

    if next_sentence_label is not None:
        logits = outputs["seq_relationship_logits"]  # (B, 2)
        losses.nsp_losses, losses.nsp_correct = losses_and_correct(logits, next_sentence_label.flatten())

    return losses


def row_lengths(inputs: dict) -> Tensor:
    """(B,) tokens of each row that are not padding."""
    if inputs.get("attention_mask") is not None:
        return inputs["attention_mask"].sum(1)
    rows, width = inputs["input_ids"].shape
    return torch.full((rows,), width, device=inputs["input_ids"].device)


def counts_per_example(inputs: dict, losses: PreTrainingLosses, targets: dict[str, Tensor]) -> Tensor:
    """(B, 6) `PER_EXAMPLE` of each row of a batch.

    Args:
        targets: (M,) `positions`, and which of them and of the pairs (B,) count: `masked`, `pairs`.
    """
    device = inputs["input_ids"].device
    dtype = sum_dtype(device)
    counts = torch.zeros(len(inputs["input_ids"]), len(PER_EXAMPLE), dtype=dtype, device=device)

    if losses.mlm_losses is not None and losses.mlm_correct is not None:
        columns = (losses.mlm_losses, targets["masked"], losses.mlm_correct)
        of_tokens = torch.stack([column.to(dtype) for column in columns], 1)  # (M, 3)
        rows = targets["positions"] // inputs["labels"].shape[1]
        counts[:, :3].index_add_(0, rows, of_tokens)
    if losses.nsp_losses is not None and losses.nsp_correct is not None:
        columns = (losses.nsp_losses, targets["pairs"], losses.nsp_correct)
        counts[:, 3:] = torch.stack([column.to(dtype) for column in columns], 1)
    return counts


def pretraining_metrics(counts: dict[str, float]) -> dict[str, float]:
    """Mean losses (nats) and accuracies from sums and counts; a task of which nothing was counted is left out."""
    metrics = {"loss": 0.0}
    for task, number in (("mlm", "masked"), ("nsp", "pairs")):
        if counts[number]:
            metrics[f"{task}_loss"] = counts[f"{task}_sum"] / counts[number]
            metrics[f"{task}_accuracy"] = counts[f"{task}_correct"] / counts[number]
            metrics["loss"] += metrics[f"{task}_loss"]
    return {name: float(value) for name, value in metrics.items()}
