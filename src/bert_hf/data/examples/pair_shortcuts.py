"""Measures how well the next-sentence label can be predicted from a pair without reading it."""

import numpy as np
import scipy.sparse
from sklearn.linear_model import LogisticRegression
from transformers import PreTrainedTokenizerBase

from bert_hf.console import Finding
from bert_hf.data.examples.collator import DataCollatorForPreTraining
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.data.examples.length_leak import MIN_PAIRS, length_leak

MAX_PAIRS = 8000  # examples that the shortcuts are looked for in; half of them to learn from
Segments = list[tuple[np.ndarray, np.ndarray]]  # A and B of each pair, without special tokens


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
