"""Per-example losses of the stock heads, which sum exactly in any batch layout.

The stock heads return a mean over the micro-batch. Under accumulation and on several ranks a mean of such means
depends on how the labels are spread over the micro-batches; Trainer divides some wrongly (docs/reliability.md).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from bert_hf.models.functional import IGNORE_INDEX


def count_labels(labels: Tensor) -> Tensor:
    """Return (B,) the number of labels of each input: class ids other than `IGNORE_INDEX`, numbers other than NaN."""
    has_label = ~labels.isnan() if labels.is_floating_point() else labels != IGNORE_INDEX
    return has_label.reshape(len(labels), -1).sum(1)


def cross_entropies(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return (B,) the sum of the cross entropies of each model input's labels, in nats.

    Args:
        logits: (B, C), or (B, L, C) with one label per token.
        labels: (B,) or (B, L) class ids; `IGNORE_INDEX` adds nothing.
        label_smoothing: share of the target that is spread evenly over the classes.
    """
    token_losses = F.cross_entropy(
        logits.float().flatten(0, -2), labels.flatten(), ignore_index=IGNORE_INDEX, label_smoothing=label_smoothing,
        reduction="none",
    )  # fmt: skip
    return token_losses.reshape(len(labels), -1).sum(1)


def binary_cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Return (B,) the sum of the binary cross entropies of each row's labels (B, C), 0 or 1 each; NaN adds nothing."""
    known = ~labels.isnan()
    losses = F.binary_cross_entropy_with_logits(logits.float(), labels.float().where(known, 0.0), reduction="none")
    return losses.where(known, 0.0).sum(1)


def squared_errors(logits: Tensor, labels: Tensor) -> Tensor:
    """Return (B,) the squared differences of the predicted numbers (B, 1) and the labels (B,); NaN adds nothing."""
    differences = logits.float().squeeze(-1) - labels.float()
    return differences.masked_fill(labels.isnan(), 0.0).square()


def span_cross_entropies(starts: Tensor, ends: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
    """Return (B,) the cross entropy of start plus end; each is a choice among the input's tokens.

    Padding is not among them. (It is in the stock loss, which therefore depends on the width of the batch.)

    Args:
        starts, ends: (B, L) logits.
        attention_mask: (B, L) 0 for padding.
        labels: (B, 2) first and last token of the answer.
    """
    padding = attention_mask == 0
    losses = [
        cross_entropies(logits.float().masked_fill(padding, -torch.inf), label)
        for logits, label in zip((starts, ends), labels.unbind(1), strict=True)
    ]
    return losses[0] + losses[1]
