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

_VECTORS = {
    "words": {"ngram_range": (1, 2), "token_pattern": r"(?u)\S+"},
    "characters": {"analyzer": "char_wb", "ngram_range": (2, 5)},
}


# ---- texts


def cut_texts(
    rows: LabelledTexts, tokenizer: PreTrainedTokenizerBase, max_seq_length: int, long_texts: str = "head"
) -> LabelledTexts:
    """Return the rows as baselines may read them: texts end where the network stops to read at their beginning."""
    if long_texts != "head":
        return rows
    options: Any = {"truncation": "longest_first", "max_length": max_seq_length, "verbose": False}
    encoded: Any = tokenizer(rows.texts, rows.pairs, **options)
    texts, pairs = list(rows.texts), rows.pairs and list(rows.pairs)
    for row, encoding in enumerate(encoded.encodings or ()):
        if encoding.overflowing:
            for sequence, column in enumerate(filter(None, (texts, pairs))):
                tokens = zip(encoding.offsets, encoding.sequence_ids, strict=True)
                end = max((end for (_, end), number in tokens if number == sequence), default=0)
                column[row] = column[row][:end]
    return dataclasses.replace(rows, texts=texts, pairs=pairs)


# ---- features


def tfidf(kind: str) -> TfidfVectorizer:
    """Return the vectorizer of "words" (and word pairs), or of "characters" (n-grams of 2 to 5 within words)."""
    return TfidfVectorizer(sublinear_tf=True, **_VECTORS[kind])


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


# ---- models


class Baselines:
    """The majority class, and linear SVMs on words and on characters; of a regression the mean, and ridge regressions.

    Of several labels per row each has an SVM of its own, and the majority are those that most rows have. Where all
    training rows are of one class, the majority is the only baseline. All rows are cut to what the network reads
    (`cut_texts`).
    """

    def __init__(self, train: LabelledTexts, head: ClassificationHead):
        self.head = head
        self.labels = head.labels
        self.targets = head.targets(train)
        self.models = {}
        if self.labels and len(np.unique(self.targets)) < 2:  # nothing for an SVM to separate
            return
        for kind in _VECTORS:
            vectorizer = tfidf(kind).fit([*train.texts, *(train.pairs or [])])
            features = text_features(vectorizer, train)
            self.models[kind] = vectorizer, self._linear(self._best_c(features)).fit(features, self.targets)

    def metrics(self, rows: LabelledTexts, thresholds: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Return the head's metrics of labelled rows, named `baseline_<kind>_<metric>`; `thresholds` by kind."""
        result = {}
        for kind, scores in self.predict(rows).items():
            head = copy.copy(self.head)
            head.threshold = (thresholds or {}).get(kind)
            options = head.metric_options(rows, scores)
            metrics = head.metric().compute(**head.metric_inputs(rows, scores), **options)
            result |= {f"baseline_{kind}_{name}": float(value) for name, value in metrics.items()}
        return result

    def predict(self, rows: LabelledTexts) -> dict[str, np.ndarray]:
        """Return scores of rows by kind of baseline, as logits of the head: (N, classes), or (N, 1) numbers."""
        if self.head.several_labels:
            shares = self.targets.mean(axis=0)
            result = {"majority": np.tile(np.where(shares >= 0.5, 1.0, -1.0), (len(rows), 1))}
        elif self.labels:
            counts = np.bincount(self.targets, minlength=len(self.labels)).astype(float)
            result = {"majority": np.tile(counts, (len(rows), 1))}
        else:
            result = {"mean": np.full((len(rows), 1), self.targets.mean())}

        for kind, (vectorizer, model) in self.models.items():
            result[kind] = self._scores(model, text_features(vectorizer, rows))
        return result

    def _linear(self, c: float) -> Any:
        """Return the linear model for these labels, not fitted."""
        if self.labels:
            svm = LinearSVC(C=c, class_weight="balanced", random_state=0)
            return OneVsRestClassifier(svm) if self.head.several_labels else svm
        return Ridge(alpha=1 / c, solver="lsqr")

    def _scores(self, model: Any, features: csr_matrix) -> np.ndarray:
        """Return (N, classes) scores of a model from `_linear`, or (N, 1) numbers of a regression."""
        if not self.labels:
            return model.predict(features)[:, None]

        scores = model.decision_function(features)
        if self.head.several_labels:
            return scores.reshape(len(scores), -1)
        if scores.ndim == 1:  # of two classes
            scores = np.stack([-scores, scores], axis=1)
        every = np.full((len(scores), len(self.labels)), -np.inf)  # a class may have no training row
        every[:, model.classes_] = scores
        return every

    def _best_c(self, features: csr_matrix) -> float:
        """Return the C with the best mean over the folds: Matthews correlation, micro F1 or squared error.

        Matthews correlation, because F1 of a frequent positive class is high for the majority already.
        """
        drawn = np.sort(np.random.default_rng(0).permutation(len(self.targets))[:_MAX_ROWS])
        targets = self.targets[drawn]
        by_class = bool(self.labels) and not self.head.several_labels
        rarest = min(np.sum(targets == one) for one in np.unique(self.targets)) if by_class else _FOLDS
        if len(self.targets) < _FEW_ROWS or rarest < _FOLDS:
            return _DEFAULT_C

        folds = (StratifiedKFold if by_class else KFold)(_FOLDS, shuffle=True, random_state=0)
        scoring = "matthews_corrcoef" if by_class else "f1_micro"
        if not self.labels:
            scoring = "neg_mean_squared_error"
        means = [
            cross_val_score(self._linear(c), features[drawn], targets, cv=folds, scoring=scoring).mean()
            for c in _C_VALUES
        ]
        return _C_VALUES[int(np.argmax(means))]
