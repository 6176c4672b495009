"""Draws the log and the confusion matrix of a run, for its model card, and writes the log as a table."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image  # matplotlib requires it

from bert_hf.training.log_lines import metric_label

_COLOURS = {"mlm": "tab:blue", "nsp": "tab:orange", "f1": "tab:green", "accuracy": "tab:blue", "loss": "tab:blue"}


def write_curves(history: list[dict], folder: Path, baselines: dict[str, float]) -> None:
    """Write `log_history.csv` (every entry of the log) and `loss.png` (see `draw_curves`)."""
    columns = ["step", *sorted({name for row in history for name in row} - {"step"})]
    with open(folder / "log_history.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(history)

    save_picture(draw_curves(history, baselines), folder / "loss.png")


def draw_curves(history: list[dict], baselines: dict[str, float]) -> Figure:
    """Draw a panel of losses, and one of accuracies and F1 if there are any, each with its baseline as a dashed line.

    Pre-training: the MLM loss, and the accuracy of the pairs' label (MLM accuracy if there are no pairs). The loss
    of that label is left out, because it is below 0.7 nats where the MLM loss is between 2 and 10.
    """
    names = sorted({name for row in history for name in row})
    losses = [name for name in names if name.endswith("loss")]
    losses = [name for name in losses if "mlm" in name] or losses
    scores = [name for name in names if name.endswith(("accuracy", "_f1"))]
    scores = [name for name in scores if "mlm" not in name] or scores

    figure = Figure(figsize=(11 if scores else 6, 4))
    panels = figure.subplots(1, 2 if scores else 1, squeeze=False)[0]
    unigram = baselines.get("unigram_mlm_loss")
    _draw_panel(panels[0], history, losses, "loss (nats)", unigram, "unigram frequencies")
    if scores:
        majority = next((value for name, value in baselines.items() if name.startswith("majority_")), None)
        ylabels = [label for label in ("F1", "accuracy") if any(name.endswith(label.lower()) for name in scores)]
        _draw_panel(panels[1], history, scores, ", ".join(ylabels), majority, "majority class")
    figure.tight_layout()
    return figure


def _draw_panel(
    panel: Axes, history: list[dict], names: list[str], ylabel: str, baseline: float | None, baseline_name: str
) -> None:
    """Draw metrics by step: training as thin lines, held out with points; and the baseline, if any, dashed."""
    for name in names:
        points = [(row["step"], row[name]) for row in history if name in row and "step" in row]
        if not points or name.startswith("train_"):  # the mean over the run is a metric, not a curve
            continue

        held_out = name.startswith("eval_")
        style = {"marker": "o", "markersize": 3, "linewidth": 1.6} if held_out else {"linewidth": 1, "alpha": 0.45}
        colour = next((_COLOURS[key] for key in _COLOURS if key in name), "tab:gray")  # the first key counts
        label = f"{metric_label(name)}, {'held out' if held_out else 'training'}"
        panel.plot(*zip(*points, strict=True), color=colour, label=label, **style)

    if baseline is not None:
        label = f"{baseline_name} ({baseline:.3f})"
        panel.axhline(baseline, linestyle="--", linewidth=1, color="black", label=label)

    panel.set(xlabel="step", ylabel=ylabel)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(alpha=0.25)
    if panel.lines:
        panel.legend(fontsize=8, frameon=False)


def draw_confusion(path: Path, references: Any, predictions: Any, labels: Sequence[str]) -> None:
    """Write a picture of the confusion matrix, in percent of each true class; both arrays (rows,) index `labels`."""
    counts = np.zeros((len(labels), len(labels)), dtype=int)
    np.add.at(counts, (np.asarray(references), np.asarray(predictions)), 1)
    class_sizes = counts.sum(axis=1)
    shares = counts / np.maximum(class_sizes, 1)[:, None]

    height = 2 + 0.5 * len(labels)  # inches
    figure = Figure(figsize=(height + 1, height), layout="constrained")
    panel = figure.subplots()
    panel.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for (true, predicted), share in np.ndenumerate(shares):
        if share:
            colour = "white" if share > 0.5 else "black"
            panel.text(predicted, true, f"{share:.0%}", ha="center", va="center", color=colour)
    panel.set_xticks(range(len(labels)), labels, rotation=45, ha="right", rotation_mode="anchor")
    row_labels = [f"{label} ({size:,})" for label, size in zip(labels, class_sizes, strict=True)]
    panel.set_yticks(range(len(labels)), row_labels)
    panel.set_xlabel("predicted label")
    panel.set_ylabel("true label (rows)")
    save_picture(figure, path)


def save_picture(figure: Figure, path: Path) -> None:
    """Write a picture for a model card: of 64 colours, which makes it small, on white."""
    content = io.BytesIO()
    figure.savefig(content, dpi=120)
    Image.open(content).convert("RGB").quantize(64).save(path, optimize=True)
