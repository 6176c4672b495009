"""Baselines without a network: majority class and linear models on TF-IDF.

Character n-grams are hard to beat on short messages: benchmarks/README.md. Nothing is chosen on test rows.
"""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC
from transformers import PreTrainedTokenizerBase

from bert_hf.finetuning.heads.classification import ClassificationHead
from bert_hf.finetuning.rows.labelled_texts import LabelledTexts

_C_VALUES = (0.01, 0.1, 1.0)  # C of the SVM, 1 / alpha of the ridge regression; from strong to weak regularization
_FOLDS = 3
_FEW_ROWS = 50  # below this C is not chosen: each fold would decide by a handful of rows
_DEFAULT_C = _C_VALUES[0]  # F1 of 40 SMS, on characters: 0.76, and 0.41 with C = 1 (mean of eight draws)
_MAX_ROWS = 3000  # for choosing C; the model itself is fitted to all rows

_TFIDF_OPTIONS = {  # by kind of baseline
    "words": {"ngram_range": (1, 2), "token_pattern": r"(?u)\S+"},
    "characters": {"analyzer": "char_wb", "ngram_range": (2, 5)},
}


def cut_texts(
    rows: LabelledTexts, tokenizer: PreTrainedTokenizerBase, max_seq_length: int, long_texts: str = "head"
) -> LabelledTexts:
    """Return the rows with each text cut after the last character that the network reads.

    Only where the network reads only the beginning of a long text, which is `long_texts` "head".
    """
    if long_texts != "head":
        return rows
    options: Any = {"truncation": "longest_first", "max_length": max_seq_length, "verbose": False}
    encoded: Any = tokenizer(rows.texts, rows.pairs, **options)
    texts = list(rows.texts)
    pairs = None if rows.pairs is None else list(rows.pairs)
    for row, encoding in enumerate(encoded.encodings or ()):
        if encoding.overflowing:  # tokens were cut off
            tokens = list(zip(encoding.offsets, encoding.sequence_ids, strict=True))
            for sequence, column in enumerate([texts] if pairs is None else [texts, pairs]):
                ends = [end for (_, end), token_sequence in tokens if token_sequence == sequence]
                column[row] = column[row][: max(ends, default=0)]
    return dataclasses.replace(rows, texts=texts, pairs=pairs)


def new_vectorizer(kind: str) -> TfidfVectorizer:
    """Return a new vectorizer of "words" (and word pairs), or of "characters" (n-grams of 2 to 5 within words)."""
    return TfidfVectorizer(sublinear_tf=True, **_TFIDF_OPTIONS[kind])


def text_features(vectorizer: TfidfVectorizer, rows: LabelledTexts) -> csr_matrix:
    """Return (N, features) TF-IDF of n-grams. Of pairs: the features of both texts, and their overlap.

    The overlap is the product of the two vectors, with one entry per n-gram that both texts have, and its sum, which
    is their cosine.
    """
    first = cast(csr_matrix, vectorizer.transform(rows.texts))
    if rows.pairs is None:
        return csr_matrix(first)

    second = vectorizer.transform(rows.pairs)
    overlap = first.multiply(second)
    return cast(csr_matrix, hstack([first, second, overlap, csr_matrix(overlap.sum(axis=1))], format="csr"))


class Baselines:
    """The majority class, and linear SVMs on words and on characters; of a regression the mean, and ridge regressions.

    Where a row may have several labels, each label has an SVM, and the majority baseline predicts the labels that at
    least half of the rows have. Where all training rows are of one class, the majority is the only baseline.
    """

    def __init__(self, train: LabelledTexts, head: ClassificationHead):
        self.head = head
        self.labels = head.labels  # none for a regression
        self.targets = head.targets(train)
        self.models: dict[str, tuple[TfidfVectorizer, Any]] = {}  # by kind, "words" and "characters"; fitted
        if self.labels and len(np.unique(self.targets)) < 2:  # nothing for an SVM to separate
            return
        for kind in _TFIDF_OPTIONS:
            vectorizer = new_vectorizer(kind).fit([*train.texts, *(train.pairs or [])])
            features = text_features(vectorizer, train)
            model = self._new_model(self._choose_c(features))
            self.models[kind] = vectorizer, model.fit(features, self.targets)

    def metrics(self, rows: LabelledTexts, thresholds: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Return the head's metrics of labelled rows, named `baseline_<kind>_<metric>`.

        `thresholds` are of each kind of baseline, in the form of `Head.threshold`.
        """
        result = {}
        for kind, scores in self.scores(rows).items():
            head = copy.copy(self.head)  # the model's head keeps its threshold
            head.threshold = (thresholds or {}).get(kind)
            options = head.metric_options(rows, scores)
            metrics = head.metric().compute(**head.metric_inputs(rows, scores), **options)
            result |= {f"baseline_{kind}_{name}": float(value) for name, value in metrics.items()}
        return result

    def scores(self, rows: LabelledTexts) -> dict[str, np.ndarray]:
        """Return scores by kind of baseline, read as logits of the head: (N, classes), or (N, 1) predicted numbers."""
        if self.head.several_labels:
            shares = self.targets.mean(axis=0)  # of the training rows that have each label
            result = {"majority": np.tile(np.where(shares >= 0.5, 1.0, -1.0), (len(rows), 1))}
        elif self.labels:
            counts = np.bincount(self.targets, minlength=len(self.labels)).astype(float)
            result = {"majority": np.tile(counts, (len(rows), 1))}
        else:
            result = {"mean": np.full((len(rows), 1), self.targets.mean())}

        for kind, (vectorizer, model) in self.models.items():
            result[kind] = self._linear_scores(model, text_features(vectorizer, rows))
        return result

    def _new_model(self, c: float) -> Any:
        """Return an SVM, one for each of several labels, or a ridge regression; not fitted."""
        if self.labels:
            svm = LinearSVC(C=c, class_weight="balanced", random_state=0)
            return OneVsRestClassifier(svm) if self.head.several_labels else svm
        return Ridge(alpha=1 / c, solver="lsqr")

    def _linear_scores(self, model: Any, features: csr_matrix) -> np.ndarray:
        """Return (N, classes) scores of a fitted linear model, or (N, 1) numbers of a regression."""
        if not self.labels:
            return model.predict(features)[:, None]

        scores = model.decision_function(features)
        if self.head.several_labels:
            return scores.reshape(len(scores), -1)
        if scores.ndim == 1:  # of two classes scikit-learn gives only the score of the second one
            scores = np.stack([-scores, scores], axis=1)
        by_class = np.full((len(scores), len(self.labels)), -np.inf)  # a class may have no training row
        by_class[:, model.classes_] = scores
        return by_class

    def _choose_c(self, features: csr_matrix) -> float:
        """Return the C of the best cross-validated metric; `_DEFAULT_C` where there are too few rows to choose by.

        Of single classes: Matthews correlation, because F1 of a frequent positive class is high for the majority.
        """
        sample = np.sort(np.random.default_rng(0).permutation(len(self.targets))[:_MAX_ROWS])
        targets = self.targets[sample]
        one_class_per_row = bool(self.labels) and not self.head.several_labels
        rarest = _FOLDS  # rows of the rarest class, of which each fold needs one
        if one_class_per_row:
            rarest = min(np.sum(targets == label) for label in np.unique(self.targets))
        if len(self.targets) < _FEW_ROWS or rarest < _FOLDS:
            return _DEFAULT_C

        folds = (StratifiedKFold if one_class_per_row else KFold)(_FOLDS, shuffle=True, random_state=0)
        scoring = "matthews_corrcoef" if one_class_per_row else "f1_micro"
        if not self.labels:
            scoring = "neg_mean_squared_error"
        means = [
            cross_val_score(self._new_model(c), features[sample], targets, cv=folds, scoring=scoring).mean()
            for c in _C_VALUES
        ]
        return _C_VALUES[int(np.argmax(means))]
