"""Label leaks: how well the NSP label can be predicted without comparing the two segments.

A model that can infer the label from the lengths of the segments, or from the words of each, learns that instead of
language. `shortcuts` reports on a text (`prepare.py --check true`); `length_leak` also tests our pair sampler.
"""

from typing import NamedTuple

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score

from bert_hf.console import Finding
from bert_hf.data.examples.collator import DataCollatorForPreTraining
from bert_hf.data.examples.dataset import PreTrainingExamples

MIN_PAIRS = 400  # below it the sampling error is 2.5 points and more
MAX_PAIRS = 8000  # examples that the shortcuts are looked for in; half of them to learn from
ALLOWED = 0.02  # accuracy above chance that is tolerated
_FOLDS = 4


class LengthLeak(NamedTuple):
    """How well the lengths predict the label."""

    accuracy: float  # share of the labels that the trees predict correctly
    chance: float  # share of the more frequent label: the accuracy of always predicting it
    error: float  # standard error of an accuracy of one half, for this number of pairs

    def is_found(self) -> bool:
        """Return whether the accuracy is above the tolerated one by two standard errors."""
        return self.accuracy > self.chance + ALLOWED + 2 * self.error


def length_leak(length_a: np.ndarray, length_b: np.ndarray, label: np.ndarray) -> LengthLeak:
    """Predict the label of pairs only from their lengths: boosted trees, four-fold, always with the same folds.

    [SEP] follows A and B, so its positions are the same information. The trees are fewer and smaller than
    scikit-learn's default, which overfits some thousand pairs and detects less of a small leak.

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


def shortcuts(examples: PreTrainingExamples, collator: DataCollatorForPreTraining) -> list[Finding]:
    """Return the accuracy reached from the lengths (`length_leak`), and from the words of A and of B, not compared."""
    number = min(MAX_PAIRS, len(examples))
    if number < MIN_PAIRS:
        return [Finding(f"{number} pairs: too few to look for label leaks")]

    features = [examples[index] for index in range(number)]
    labels = np.array([feature["next_sentence_label"] for feature in features])
    pairs = [collator.example(feature) for feature in features]
    return [_leak_in_lengths(pairs, labels), _leak_in_words(pairs, labels, collator.tokenizer.all_special_ids)]


def _leak_in_lengths(pairs: list[dict], labels: np.ndarray) -> Finding:
    b = np.array([pair["token_type_ids"].sum() - 1 for pair in pairs])  # without its [SEP]
    a = np.array([len(pair["input_ids"]) for pair in pairs]) - b - 3
    leak = length_leak(a, b, labels)
    text = (
        f"next sentence or not, told by their lengths: {leak.accuracy:.1%} right "
        f"(by guessing {leak.chance:.1%} ± {leak.error:.1%})"
    )
    hint = "few sentences are as long as the one-sentence documents: join these, or pass --nsp false"
    return Finding(text, hint if leak.is_found() else "")


def _leak_in_words(pairs: list[dict], labels: np.ndarray, special_ids: list[int]) -> Finding:
    columns = DictVectorizer().fit_transform([_bag_of_words(pair, special_ids) for pair in pairs])

    half = len(labels) // 2
    model = LogisticRegression(C=0.1, solver="liblinear").fit(columns[:half], labels[:half])
    accuracy = model.score(columns[half:], labels[half:])

    error = np.sqrt(0.25 / half)
    text = (
        f"next sentence or not, told by the words of each, not compared: {accuracy:.1%} right "
        f"(by guessing 50 ± {error:.1%})"
    )
    hint = "NOT_NEXT segments differ from NEXT ones in more than their text: check the shortest documents"
    return Finding(text, hint if accuracy >= 0.55 + 3 * error else "")


def _bag_of_words(pair: dict, special_ids: list[int]) -> dict[int, float]:
    """Return which words occur in A and in B, each segment scaled to length 1, so that long ones do not dominate.

    A = 7 9 7 and B = 5 are {14: 0.71, 18: 0.71, 11: 1.0}: twice the id, plus one for B.
    """
    plain = ~np.isin(pair["input_ids"], special_ids)
    bag = {}
    for segment in (0, 1):
        words = np.unique(pair["input_ids"][plain & (pair["token_type_ids"] == segment)])
        bag |= dict.fromkeys((2 * words + segment).tolist(), max(1, len(words)) ** -0.5)
    return bag
