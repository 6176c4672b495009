"""What a person looks at before a classifier is used: its mistakes, groups of rows, rows of another kind."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax
from transformers import PreTrainedTokenizerBase

from bert_hf.data.text.tokenization import id_count
from bert_hf.finetuning.labelled_texts import LabelledTexts
from bert_hf.finetuning.metrics import THRESHOLD_METRICS, positive_rates

_SHARES = np.linspace(0, 1, 11)
_LEAST = 0.2  # distance of two distributions, of which a user hears
_CRITICAL = 1.95  # divided by √N, the distance by chance in one of a thousand samples (Kolmogorov & Smirnov)


class Judged(NamedTuple):
    """Labelled rows, and what a model says about them: (N, classes) probabilities, (N,) ids of classes."""

    rows: LabelledTexts
    probabilities: np.ndarray
    predictions: np.ndarray
    targets: np.ndarray


def write_mistakes(path: Path, parts: Mapping[str, Judged], labels: Sequence[str]) -> str:
    """Writes every wrong prediction, the most probable first; returns a sentence on them.

    A label is suspected where the predicted class is at least as probable as it is, on average, for the rows that
    have it as their label (confident learning: Northcutt et al. 2021, section 3.1); never where no row has it.
    """
    lines = []
    for part, (rows, probabilities, predictions, targets) in parts.items():
        one_hot = np.eye(len(labels))[targets]
        never = np.full(len(labels), np.inf)
        averages = np.divide((probabilities * one_hot).sum(0), one_hot.sum(0), never, where=one_hot.any(0))
        texts = rows.joined()
        for row in np.flatnonzero(predictions != targets):
            said = predictions[row]
            score = probabilities[row, said]
            suspected = "yes" if score >= averages[said] else "no"
            names = [labels[targets[row]], labels[said]]
            lines.append([part, *rows.places[row], *names, f"{score:.4f}", suspected, texts[row]])

    header = ["part", "file", "line", "label", "prediction", "score", "suspected_label_error", "text"]
    _write(path, header, sorted(lines, key=lambda line: line[5], reverse=True))
    suspected = sum(line[6] == "yes" for line in lines)
    return f"Mistakes in {', '.join(parts)} rows: {len(lines):,}, {suspected:,} of them suspected label errors"


def write_slices(path: Path, judged: Judged, slices: Mapping[str, Sequence[str]]) -> None:
    """Writes the metrics of groups of rows; `slices` has (N,) the group of each row, by the name of the grouping."""
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
    """(N,) the quarter of the rows by length, such as `2: 12 to 25`."""
    quarters = np.searchsorted(np.quantile(lengths, [0.25, 0.5, 0.75]), lengths)
    ranges = {each: lengths[quarters == each] for each in np.unique(quarters)}
    names = {each: f"{each + 1}: {own.min():.0f} to {own.max():.0f}" for each, own in ranges.items()}
    return [names[each] for each in quarters]


def _write(path: Path, header: Sequence[str], lines: Iterable[Sequence]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *lines])


# ---- rows of another kind, of which metrics say nothing


def measures(inputs: Any, logits: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> dict[str, np.ndarray]:
    """Tokens of each input, share of them that are no whole word of the vocabulary, and the highest probability."""
    parts = np.zeros(id_count(tokenizer), bool)
    for token, number in tokenizer.get_vocab().items():
        parts[number] = token.startswith("##") or token == tokenizer.unk_token
    unknown = [parts[ids].mean() for ids in inputs["input_ids"]]
    score = softmax(logits, axis=-1).max(-1)
    return {"tokens": np.array(inputs["length"]), "unknown words": np.round(unknown, 4), "score": np.round(score, 4)}


def deciles(values: np.ndarray) -> list[float]:
    """The minimum, the nine deciles and the maximum, each of them one of the values."""
    return np.quantile(values, _SHARES, method="inverted_cdf").tolist()


def drift_line(measured: Mapping[str, np.ndarray], recorded: Mapping[str, list[float]]) -> str:
    """A line on the measures whose distribution function differs from the recorded one at some decile; else ""."""
    unlike = []
    for name, reference in recorded.items():
        values = measured[name]
        below = np.mean(values[:, None] < np.array(reference), axis=0)
        up_to = np.mean(values[:, None] <= np.array(reference), axis=0)
        distance = max(np.max(below - _SHARES), np.max(_SHARES - up_to))
        if distance > max(_LEAST, _CRITICAL / len(values) ** 0.5):
            unlike.append(f"{name} about {np.mean(deciles(values)):.3g}, there {np.mean(reference):.3g}")
    return f"! the rows are unlike those of the training: {'; '.join(unlike)}" if unlike else ""
