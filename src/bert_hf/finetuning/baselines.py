"""Predictions without a network, to compare a fine-tuned model with."""

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

from bert_hf.finetuning.datasets import LabelledTexts


def baseline_predictions(train: LabelledTexts, validation: LabelledTexts, test: LabelledTexts) -> list[str]:
    """Labels of the test texts by TF-IDF of words and word pairs with a linear SVM, C chosen on the validation rows.

    A second's work, and hard to beat on short messages: what a fine-tuned model is worth is seen beside it.
    """
    best_score, best = -1.0, None
    for c in (0.1, 1.0, 10.0):
        vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\S+")
        model = make_pipeline(vectors, LinearSVC(C=c, class_weight="balanced", random_state=0))
        score = model.fit(train.texts, train.labels).score(validation.texts, validation.labels)
        if score > best_score:
            best_score, best = score, model
    return list(best.predict(test.texts))
