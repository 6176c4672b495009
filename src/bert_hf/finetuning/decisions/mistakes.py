"""Error analysis of a classifier: its mistakes, and its metrics on groups of rows."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_hf.finetuning.metrics.classification import THRESHOLD_METRICS, positive_rates
from bert_hf.finetuning.rows.labelled_texts import LabelledTexts


class Judged(NamedTuple):
    """Labelled rows, and what a model says about them: (N, classes) probabilities, (N,) ids of classes."""

    rows: LabelledTexts
    probabilities: np.ndarray
    predictions: np.ndarray
    targets: np.ndarray


def write_mistakes(path: Path, parts: Mapping[str, Judged], labels: Sequence[str]) -> str:
    """Write every wrong prediction, the most probable first; return a sentence on them.

    A label is suspected where the model, which was not fitted to these rows, is at least as sure of another class as
    it is on average when it predicts that class, and knows more than the classes' frequencies: the label is at most
    half as probable as it is frequent. (Northcutt et al. 2021 average over the rows with that label:
    where many of them are predicted wrongly, the average is low and nearly every mistake is suspected.)
    """
    lines = []
    for part, (rows, probabilities, predictions, targets) in parts.items():
        scores = probabilities[np.arange(len(rows)), predictions]
        frequencies = np.bincount(targets, minlength=len(labels)) / len(rows)
        usual = {said: scores[predictions == said].mean() for said in np.unique(predictions)}
        texts = rows.joined()
        for row in np.flatnonzero(predictions != targets):
            label, said = targets[row], predictions[row]
            unlikely = probabilities[row, label] <= frequencies[label] / 2
            suspected = "yes" if unlikely and scores[row] >= usual[said] else "no"
            names = [labels[label], labels[said]]
            lines.append([part, *rows.places[row], *names, f"{scores[row]:.4f}", suspected, texts[row]])

    header = ["part", "file", "line", "label", "prediction", "score", "suspected_label_error", "text"]
    _write(path, header, sorted(lines, key=lambda line: line[5], reverse=True))
    suspected = sum(line[6] == "yes" for line in lines)
    return f"Mistakes in {', '.join(parts)} rows: {len(lines):,}, {suspected:,} of them suspected label errors"


def write_slices(path: Path, judged: Judged, slices: Mapping[str, Sequence[str]]) -> None:
    """Write the metrics of groups of rows; `slices` has (N,) the group of each row, by the name of the grouping."""
    _, probabilities, predictions, targets = judged
    names = THRESHOLD_METRICS if probabilities.shape[1] == 2 else ()
    lines = []
    for slice_name, groups in slices.items():
        for group in np.unique(groups):
            chosen = np.array(groups) == group
            predicted, own = predictions[chosen], targets[chosen]
            rates = positive_rates(predicted == 1, own == 1)
            metrics = [float(np.mean(predicted == own)), *(rates[name] for name in names)]
            lines.append([slice_name, group, len(own), int(np.sum(own == 1)), *(f"{value:.4f}" for value in metrics)])
    _write(path, ["slice", "group", "rows", "of_class_1", "accuracy", *names], lines)


def length_groups(lengths: np.ndarray) -> list[str]:
    """Return (N,) the quarter of the rows by length, such as `2: 12 to 25`."""
    quarters = np.searchsorted(np.quantile(lengths, [0.25, 0.5, 0.75]), lengths)
    ranges = {each: lengths[quarters == each] for each in np.unique(quarters)}
    names = {each: f"{each + 1}: {own.min():.0f} to {own.max():.0f}" for each, own in ranges.items()}
    return [names[each] for each in quarters]


def _write(path: Path, header: Sequence[str], lines: Iterable[Sequence]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *lines])
