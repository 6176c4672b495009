"""The losses of the stock heads, of each model input apart, so that any layout of a batch sums them exactly.

The stock heads return a mean over the micro-batch. Under accumulation and on several ranks a mean of such means
weights a label by the number of labels in its micro-batch, and Trainer divides some of them wrongly
(docs/exactness.md).
"""

import torch.nn.functional as F
from torch import Tensor

IGNORED = -100  # a label that is not trained on: torch's and transformers' value


def count_labels(labels: Tensor) -> Tensor:
    """(B,) labels of each model input that are trained on."""
    return (labels != IGNORED).reshape(len(labels), -1).sum(1)


def cross_entropies(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """(B,) sum of the cross entropies of each model input's labels, in nats.

    Args:
        logits: (B, C), or (B, L, C) with one label a token.
        labels: (B,) or (B, L) class ids; `IGNORED` adds nothing.
        label_smoothing: share of the target that is spread evenly over the classes.
    """
    each = F.cross_entropy(
        logits.float().flatten(0, -2), labels.flatten(), ignore_index=IGNORED, label_smoothing=label_smoothing,
        reduction="none",
    )  # fmt: skip
    return each.reshape(len(labels), -1).sum(1)


def squared_errors(logits: Tensor, labels: Tensor) -> Tensor:
    """(B,) squared differences of the predicted numbers (B, 1) and the labels (B,)."""
    difference = logits.float().squeeze(-1) - labels.float()
    return difference.square() * (labels != IGNORED)


def span_cross_entropies(starts: Tensor, ends: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """(B,) cross entropy of the start plus that of the end; each is a choice among the L tokens of the input.

    Args:
        starts, ends: (B, L) logits.
        labels: (B, 2) first and last token of the answer.
    """
    first = cross_entropies(starts, labels[:, 0], label_smoothing)
    return first + cross_entropies(ends, labels[:, 1], label_smoothing)
