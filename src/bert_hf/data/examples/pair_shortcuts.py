"""Measures how well the next-sentence label can be predicted from a pair without reading it.

A model that can infer the label from the lengths of the segments, or from their words taken alone, learns that instead
of language. `shortcuts` reports on a text (`prepare.py --check true`); `length_leak` also tests our pair sampler.
"""

from typing import NamedTuple

import numpy as np
import scipy.sparse
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from transformers import PreTrainedTokenizerBase

from bert_hf.data.corpus.finding import Finding
from bert_hf.data.examples.collator import DataCollatorForPreTraining
from bert_hf.data.examples.dataset import PreTrainingExamples

MIN_PAIRS = 400  # below it the sampling error is 2.5 points and more
MAX_PAIRS = 8000  # examples that the shortcuts are looked for in; half of them to learn from
ALLOWED = 0.02  # accuracy above chance that is tolerated
_FOLDS = 4
Segments = list[tuple[np.ndarray, np.ndarray]]  # A and B of each pair, without special tokens


class LengthLeak(NamedTuple):
    """How well the lengths predict the label."""

    accuracy: float  # share of the labels that the trees predict correctly
    chance: float  # share of the more frequent label: the accuracy of always predicting it
    error: float  # standard error of an accuracy of one half, for this number of pairs

    def is_found(self) -> bool:
        """True if the accuracy is above the tolerated one by two standard errors."""
        return self.accuracy > self.chance + ALLOWED + 2 * self.error


def length_leak(length_a: np.ndarray, length_b: np.ndarray, label: np.ndarray) -> LengthLeak:
    """Predicts the label of pairs from their lengths alone: boosted trees, four-fold, always with the same folds.

    [SEP] follows A and B, so its positions are the same information. The sum and the difference of the lengths are
    inputs, too: trees approximate them only by many cuts. The trees are fewer and smaller than scikit-learn's default,
    which overfits some thousand pairs and detects less of a small leak.

    Args:
        length_a, length_b: (N,) tokens of A and B as the model sees them: after truncation.
        label: (N,) 0 or 1.
    """
    columns = np.stack([length_a, length_b, length_a + length_b, length_a - length_b], axis=1)
    trees = HistGradientBoostingClassifier(
        max_iter=50,
        max_leaf_nodes=8,
        min_samples_leaf=40,
        early_stopping=False,  # pyright: ignore[reportArgumentType] - the stub names the type of "auto" only
        random_state=0,
    )
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=0)
    accuracy = cross_val_score(trees, columns, label, cv=folds).mean()

    ones = np.mean(label)
    return LengthLeak(float(accuracy), float(max(ones, 1 - ones)), float(0.5 / np.sqrt(len(label))))


def shortcuts(
    examples: PreTrainingExamples, collator: DataCollatorForPreTraining, counts: np.ndarray
) -> list[Finding]:
    """The accuracy reached from the lengths, from the words of A and of B, and from the words they share.

    The lengths must not tell the label (`length_leak`), and neither must the words of A and of B, each taken alone.
    The words that A and B share may tell much: they are the baseline for a model. Both are measured by logistic
    regressions, trained on one half of the pairs and tested on the other.

    Args:
        counts: (V,) how often each token occurs in the text.
    """
    number = min(MAX_PAIRS, len(examples))
    if number < MIN_PAIRS:
        return [Finding(f"{number} pairs are too few to look for shortcuts in")]

    features = [examples[index] for index in range(number)]
    labels = np.array([feature["next_sentence_label"] for feature in features])
    collated = [collator.example(feature) for feature in features]
    segments = [_segments(example, collator.tokenizer) for example in collated]

    words = _accuracy(_words(segments, len(counts)), labels)
    shared = _accuracy(_shared(segments, counts), labels)
    error = np.sqrt(0.25 / (number / 2))
    chance = f"(by guessing 50 ± {error:.1%})"
    remedy = "NOT_NEXT segments differ from NEXT ones by more than their text: look at the shortest documents"
    return [
        _told_by_lengths(collated, labels),
        Finding(
            f"next sentence or not, told by the words of each, not compared: {words:.1%} right {chance}",
            remedy if words >= 0.55 + 3 * error else "",
        ),
        Finding(f"next sentence or not, told by the words they share: {shared:.1%} right {chance}"),
    ]


def _told_by_lengths(examples: list[dict], labels: np.ndarray) -> Finding:
    b = np.array([example["token_type_ids"].sum() - 1 for example in examples])  # without its [SEP]
    a = np.array([len(example["input_ids"]) for example in examples]) - b - 3
    leak = length_leak(a, b, labels)
    text = (
        f"next sentence or not, told by their lengths: {leak.accuracy:.1%} right "
        f"(by guessing {leak.chance:.1%} ± {leak.error:.1%})"
    )
    remedy = "few sentences are as long as the one-sentence documents: join these, or pass --nsp false"
    return Finding(text, remedy if leak.is_found() else "")


def _segments(example: dict, tokenizer: PreTrainedTokenizerBase) -> tuple[np.ndarray, np.ndarray]:
    ids, types = example["input_ids"], example["token_type_ids"]
    plain = ~np.isin(ids, tokenizer.all_special_ids)
    return ids[plain & (types == 0)], ids[plain & (types == 1)]


def _words(segments: Segments, vocabulary: int) -> scipy.sparse.csr_matrix:
    """(pairs, 2 V): which words occur in A and in B, each scaled to length 1, so that long ones do not dominate.

    With V = 100, A = 7 9 7 and B = 5: columns 7, 9, 105 with the values 0.71, 0.71, 1.
    """
    sets = [(np.unique(a), np.unique(b)) for a, b in segments]
    columns = [np.concatenate([a, b + vocabulary]) for a, b in sets]
    values = [np.full(len(words), len(words) ** -0.5) for pair in sets for words in pair if len(words)]
    ends = np.cumsum([0, *map(len, columns)])
    shape = (len(sets), 2 * vocabulary)
    return scipy.sparse.csr_matrix((np.concatenate(values), np.concatenate(columns), ends), shape)


def _shared(segments: Segments, counts: np.ndarray) -> np.ndarray:
    """(pairs, 2): share of the words in common, all counted alike, and weighted by how rare they are."""
    weight = np.log((counts.sum() + len(counts)) / (counts + 1))
    rows = []
    for a, b in segments:
        both = np.intersect1d(a, b)
        a, b = np.unique(a), np.unique(b)
        scale = np.sqrt(weight[a].sum() * weight[b].sum()) + 1e-9
        rows.append((len(both) / (len(a) + len(b) - len(both) + 1e-9), weight[both].sum() / scale))
    return 10 * np.array(rows)


def _accuracy(columns, labels: np.ndarray) -> float:
    """Of a logistic regression that is trained on the first half of the rows, on the second half."""
    half = len(labels) // 2
    model = LogisticRegression(C=0.1, solver="liblinear").fit(columns[:half], labels[:half])
    return float(model.score(columns[half:], labels[half:]))
