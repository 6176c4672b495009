"""Measures frozen features: logistic regression on the states of every layer, compared with TF-IDF.

All methods see the same labelled rows and are tested on the same held-out fold. Layer, pooling and C are chosen by
cross-validation inside the labelled rows, and below `MIN_ROWS_TO_CHOOSE` rows not at all.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from sklearn import config_context
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.preprocessing import StandardScaler
from transformers import BertForPreTraining

from bert_hf.analysis.probe.data import LabelledTask, draw_rows, outer_folds
from bert_hf.analysis.probe.network import Subject, batches_by_length, model_inputs
from bert_hf.finetuning.baselines import tfidf
from bert_hf.finetuning.metrics import f1

MIN_ROWS_TO_CHOOSE = 50  # labelled rows below which nothing is chosen
INNER_FOLDS = 3
# Of standardised states, and of TF-IDF. The first is taken where nothing is chosen, and wins a tie.
CHOICES_OF_C = (0.1, 0.01, 1.0)
TFIDF_CHOICES = (10.0, 1.0, 100.0)
POOLINGS = ("mean", "cls")


# ---- states


@torch.no_grad()
def pooled_states(model: BertForPreTraining, rows: list[dict], subject: Subject) -> dict[str, np.ndarray]:
    """The states of every layer, pooled two ways.

    Args:
        rows: N rows of `input_ids` and `token_type_ids`.

    Returns:
        mean (over all tokens but [CLS], [SEP]) and cls: each (layers + 1, N, H) float32; layer 0 is the embeddings.
    """
    shape = (model.config.num_hidden_layers + 1, len(rows), model.config.hidden_size)
    pooled = {pooling: np.zeros(shape, np.float32) for pooling in POOLINGS}
    special = [subject.tokenizer.cls_token_id, subject.tokenizer.sep_token_id]
    outside = torch.tensor(special, device=subject.device)
    for batch in batches_by_length([len(row["input_ids"]) for row in rows]):
        inputs = model_inputs([rows[row] for row in batch], subject)
        states = torch.stack(model.bert(**inputs, output_hidden_states=True).hidden_states)  # (layers + 1, B, L, H)
        inside = inputs["attention_mask"].bool() & ~torch.isin(inputs["input_ids"], outside)
        inside[~inside.any(1), 0] = True  # an empty text: its [CLS]

        weights = (inside / inside.sum(1, keepdim=True)).to(states.dtype)
        pooled["mean"][:, batch] = torch.einsum("klth,lt->klh", states, weights).cpu().numpy()
        pooled["cls"][:, batch] = states[:, :, 0].cpu().numpy()
    return pooled


# ---- one fit


class Candidate(NamedTuple):
    """One way to turn states into a classifier."""

    pooling: str
    layer: int
    c: float


def candidates(layers: int) -> list[Candidate]:
    """All ways, best guess first: the last layer's mean, the first C. [CLS] of layer 0 is the same in every text."""
    found = []
    for layer in range(layers, -1, -1):
        for pooling in POOLINGS:
            if (pooling, layer) != ("cls", 0):
                found += [Candidate(pooling, layer, c) for c in CHOICES_OF_C]
    return found


def classifier(c: float) -> LogisticRegression:
    """Logistic regression in which all classes have the same weight."""
    return LogisticRegression(C=c, class_weight="balanced", max_iter=2000)


def score(model: LogisticRegression, rows, labels: np.ndarray, classes: int) -> float:
    """Average precision of class 1 (two classes), or macro F1 over all classes."""
    if classes == 2:
        return float(average_precision_score(labels, model.decision_function(rows)))
    return f1(labels, model.predict(rows), classes)


def inner_splits(labels: np.ndarray, groups: np.ndarray, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Splits of the labelled rows for choosing layer, pooling and C; none where the rows are too few."""
    if len(labels) < MIN_ROWS_TO_CHOOSE:
        return []
    apart = min(len(np.unique(groups[labels == one])) for one in np.unique(labels))
    folds = min(INNER_FOLDS, apart)
    if folds < 2:
        return []

    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    splits = splitter.split(labels, labels, groups)
    every = len(np.unique(labels))
    return [(a, b) for a, b in splits if len(np.unique(labels[a])) == every == len(np.unique(labels[b]))]


def fit_and_score(transform, rows, labels: np.ndarray, fit, held_out, choices: Iterable[float], classes: int) -> list:
    """Fits `transform` and, for each C, a classifier on the rows `fit`; their scores on the rows `held_out`.

    Args:
        transform: an unfitted StandardScaler or TfidfVectorizer.
        rows: (N, H) states, or (N,) strings.
    """
    with config_context(assume_finite=True, skip_parameter_validation=True):  # a tenth to a quarter of small fits
        inputs, others = transform.fit_transform(rows[fit]), transform.transform(rows[held_out])
        return [score(classifier(c).fit(inputs, labels[fit]), others, labels[held_out], classes) for c in choices]


def choose_c(make: Callable, rows, labels: np.ndarray, splits: list, choices: Sequence[float], classes: int) -> tuple:
    """(best mean score over the splits, the C that reaches it): of equal ones the first, as without splits.

    Args:
        make: makes a `transform` of `fit_and_score`.
    """
    scores = [fit_and_score(make(), rows, labels, a, b, choices, classes) for a, b in splits]
    means = np.mean(scores, axis=0) if scores else np.zeros(len(choices))
    return means.max(), choices[int(means.argmax())]


# ---- all fits of a fold


class Fold(NamedTuple):
    """The labelled rows and the test rows of one fit, with the splits inside the labelled rows."""

    train: np.ndarray
    test: np.ndarray
    inner: list[tuple[np.ndarray, np.ndarray]]


def probe_states(states: dict[str, np.ndarray], task: LabelledTask, fold: Fold) -> tuple[float, Candidate]:
    """(score on the test rows, what was chosen) of a linear probe on pooled states.

    Of equal mean scores over the inner splits the first candidate wins; without inner splits the first is taken.
    """
    labels = task.labels[fold.train]
    choices = candidates(len(states["mean"]) - 1)
    best, best_score = choices[0], -np.inf
    for first in choices[:: len(CHOICES_OF_C)]:  # one for each pooling of each layer
        rows = states[first.pooling][first.layer][fold.train].astype(np.float64)
        mean_score, c = choose_c(StandardScaler, rows, labels, fold.inner, CHOICES_OF_C, task.classes)
        if mean_score > best_score:
            best, best_score = first._replace(c=c), mean_score
    return layer_score(states, task, fold, best), best


def layer_score(states: dict[str, np.ndarray], task: LabelledTask, fold: Fold, choice: Candidate) -> float:
    """Score on the test rows with nothing left to choose."""
    rows = states[choice.pooling][choice.layer].astype(np.float64)
    return fit_and_score(StandardScaler(), rows, task.labels, fold.train, fold.test, [choice.c], task.classes)[0]


def probe_tfidf(texts: np.ndarray, task: LabelledTask, fold: Fold, kind: str) -> float:
    """Score on the test rows of logistic regression on TF-IDF, C chosen inside the labelled rows.

    Args:
        texts: (N,) strings, cut to what the networks see. kind: "words" or "characters".
    """
    rows, labels = texts[fold.train], task.labels[fold.train]
    _, c = choose_c(partial(tfidf, kind), rows, labels, fold.inner, TFIDF_CHOICES, task.classes)
    return fit_and_score(tfidf(kind), texts, task.labels, fold.train, fold.test, [c], task.classes)[0]


def majority_score(task: LabelledTask, fold: Fold) -> float:
    """Score on the test rows of the same answer to every text."""
    labels = task.labels[fold.test]
    if task.classes == 2:
        return float(labels.mean())  # the average precision of equal scores
    guesses = np.full(len(labels), np.bincount(task.labels[fold.train]).argmax())
    return f1(labels, guesses, task.classes)


# ---- the part


def labelled_folds(task: LabelledTask, counts: Iterable[int], folds: int, seed: int) -> dict[int, list[Fold]]:
    """For each number of labels the fits of all folds; a number for which a fold has too few rows is left out."""
    found: dict[int, list[Fold]] = {count: [] for count in counts}
    for number, (train, test) in enumerate(outer_folds(task, folds, seed)):
        for count in list(found):
            rows = draw_rows(task.labels, train, count, np.random.default_rng([seed, number, count]))
            if rows is None:
                del found[count]
            else:
                inner = inner_splits(task.labels[rows], task.groups[rows], seed)
                found[count].append(Fold(rows, test, inner))
    return found


def probe_features(
    networks: dict[str, list[dict[str, np.ndarray]]],
    task: LabelledTask,
    texts: np.ndarray,
    counts: list[int],
    folds: int,
    seed: int,
) -> dict | None:
    """Scores of all methods with few labels, on all folds.

    Args:
        networks: {"checkpoint": [pooled states], "random": [pooled states of each draw]}.
        texts: (N,) what the networks saw of the rows, for TF-IDF.
        counts: numbers of labels.

    Returns:
        metric; scores {method: {count: values, (folds,) or (folds × draws)}}; chosen {count: [one a fold]}; difference
        {count: checkpoint − random by fold}; by_layer {method: {pooling: means}} at the largest count. None where
        there are too few rows.
    """
    by_count = labelled_folds(task, counts, folds, seed)
    if not by_count:
        return None
    scores, chosen, difference = defaultdict(dict), {}, {}

    for count, folds_of_count in by_count.items():
        means = {}  # of a network's draws, by fold
        for name, draws in networks.items():
            results = [[probe_states(states, task, fold) for states in draws] for fold in folds_of_count]
            values = np.array([[value for value, _ in row] for row in results])  # (folds, draws)
            scores[name][count] = values.flatten().tolist()
            means[name] = values.mean(axis=1)
            if name == "checkpoint":
                chosen[count] = [list(row[0][1]) for row in results]
        difference[count] = (means["checkpoint"] - means["random"]).tolist()

        for kind in ("words", "characters"):
            scores[f"tfidf_{kind}"][count] = [probe_tfidf(texts, task, fold, kind) for fold in folds_of_count]
        scores["majority"][count] = [majority_score(task, fold) for fold in folds_of_count]

    return {
        "metric": "average precision" if task.classes == 2 else "macro F1",
        "scores": scores,
        "chosen": chosen,
        "difference": difference,
        "by_layer": _by_layer(networks, task, by_count),
    }


def _by_layer(networks: dict[str, list], task: LabelledTask, by_count: dict[int, list[Fold]]) -> dict:
    """{method: {pooling: mean score of each layer}} at the largest number of labels, C fixed; no [CLS] of layer 0."""
    count = max(by_count)
    found: dict = {"labels": count}
    for name, draws in networks.items():
        found[name] = {pooling: {} for pooling in POOLINGS}
        for choice in reversed(candidates(len(draws[0]["mean"]) - 1)[:: len(CHOICES_OF_C)]):
            scores = [layer_score(states, task, fold, choice) for states in draws for fold in by_count[count]]
            found[name][choice.pooling][choice.layer] = float(np.mean(scores))
    return found
