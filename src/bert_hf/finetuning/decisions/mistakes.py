"""Error analysis of a classifier: its mistakes."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

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
    with open(path, "w", encoding="utf-8", newline="") as file:
        rows_of_file = [header, *sorted(lines, key=lambda line: line[5], reverse=True)]
        csv.writer(file, lineterminator="\n").writerows(rows_of_file)
    suspected = sum(line[6] == "yes" for line in lines)
    return f"Mistakes in {', '.join(parts)} rows: {len(lines):,}, {suspected:,} of them confident (check their labels)"
