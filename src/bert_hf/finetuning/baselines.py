"""Predicts labels without a network (TF-IDF and a linear SVM), to compare a fine-tuned model with."""

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.svm import LinearSVC

from bert_hf.finetuning.labelled_texts import LabelledTexts


def baseline_predictions(train: LabelledTexts, validation: LabelledTexts, test: LabelledTexts) -> list[str]:
    """Labels of the test texts by TF-IDF of words and word pairs with a linear SVM, C chosen on the validation rows.

    It takes a second and is hard to beat on short messages.
    """
    models: list[Pipeline] = []
    for c in (0.1, 1.0, 10.0):
        vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\S+")
        classifier = LinearSVC(C=c, class_weight="balanced", random_state=0)
        models.append(make_pipeline(vectors, classifier).fit(train.joined(), train.class_names()))

    best = max(models, key=lambda model: model.score(validation.joined(), validation.class_names()))
    return list(best.predict(test.joined()))
