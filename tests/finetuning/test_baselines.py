"""Baselines without a network: their features, and their metrics."""

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.svm import LinearSVC

from bert_hf.finetuning.decisions import baselines as module
from bert_hf.finetuning.decisions.baselines import Baselines, cut_texts, new_vectorizer, text_features
from bert_hf.finetuning.features.long_texts import encode_texts
from bert_hf.finetuning.heads.classification import ClassificationHead
from bert_hf.finetuning.rows.labelled_texts import LabelledTexts

WORDS = [f"w{number}" for number in range(30)]


def made_rows(count: int, classes: int = 2, seed: int = 0) -> LabelledTexts:
    """Texts of eight words; the class is in two of them."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, classes, count)
    texts = [" ".join([*rng.choice(WORDS, 6), f"class{number}", f"sign{number}"]) for number in numbers]
    return LabelledTexts(texts, [f"name{number}" for number in numbers])


def made_pairs(count: int, seed: int = 0) -> LabelledTexts:
    """Pairs of four words; the label is the number of words that the second text takes from the first."""
    rng = np.random.default_rng(seed)
    shared = rng.integers(0, 5, count)
    texts = [list(rng.choice(WORDS[:15], 4, replace=False)) for _ in range(count)]
    others = [list(rng.choice(WORDS[15:], 4, replace=False)) for _ in range(count)]
    pairs = [" ".join([*a[:n], *b[n:]]) for a, b, n in zip(texts, others, shared, strict=True)]
    return LabelledTexts([" ".join(text) for text in texts], [str(number) for number in shared], pairs=pairs)


def made_head(*labels: str, **options) -> ClassificationHead:
    """The head of these classes; without them of numbers."""
    kind = {"class_names": labels} if labels else {"problem_type": "regression"}
    return ClassificationHead(None, {**kind, **options})


LONG = LabelledTexts(
    ["w1  w2 w3", "w4", "w1 w2 w3 w4 w5 w6 w7 w8"], ["a", "b", "a"], pairs=["w5 w6", "w1 w2 w3 w4 w5", "w2 w3 w4"]
)


@pytest.mark.parametrize("length", [5, 7, 8, 9, 64])
@pytest.mark.parametrize("rows", [LONG, LabelledTexts(LONG.texts, LONG.labels)])
def test_the_baselines_see_the_tokens_that_the_network_sees(tokenizer, rows, length):
    seen = encode_texts(rows, None, tokenizer, length).features["input_ids"]
    cut = encode_texts(cut_texts(rows, tokenizer, length), None, tokenizer, 64).features["input_ids"]
    assert list(cut) == list(seen)
    assert cut_texts(rows, tokenizer, length, "windows") == rows


def test_features_of_a_pair():
    rows = LabelledTexts(["red green", "red"], ["a", "b"], pairs=["green blue", "blue"])
    features = text_features(new_vectorizer("words").fit([*rows.texts, *(rows.pairs or [])]), rows).toarray()

    vectorizer = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2)).fit([*rows.texts, *rows.pairs])
    first = vectorizer.transform(rows.texts).toarray()
    second = vectorizer.transform(rows.pairs).toarray()
    cosines = [[first[0] @ second[0]], [0.0]]
    assert np.allclose(features, np.hstack([first, second, first * second, cosines]), rtol=0, atol=1e-12)
    assert cosines[0][0] > 0


@pytest.mark.parametrize("classes", [2, 3])
def test_the_svm_is_that_of_scikit_learn(classes):
    train, test = made_rows(200, classes), made_rows(40, classes, seed=1)
    fitted = Baselines(train, made_head(*(f"name{number}" for number in range(classes))))
    for kind, options in module._TFIDF_OPTIONS.items():
        vectorizer = TfidfVectorizer(sublinear_tf=True, **options)
        vectors = vectorizer.fit_transform(train.texts)
        chosen = fitted.models[kind][1].C
        model = LinearSVC(C=chosen, class_weight="balanced", random_state=0).fit(vectors, train.labels)
        guesses = [f"name{number}" for number in fitted.scores(test)[kind].argmax(axis=1)]
        assert guesses == model.predict(vectorizer.transform(test.texts)).tolist()


def test_a_class_without_training_rows_is_never_predicted():
    train = made_rows(60)
    scores = Baselines(train, made_head("name0", "unseen", "name1")).scores(train)
    assert set(scores["words"].argmax(axis=1)) == {0, 2}
    assert set(scores["majority"].argmax(axis=1)) <= {0, 2}


def test_rows_of_one_class_leave_the_majority():
    train = made_rows(60)
    train.labels = ["name1"] * 60
    test = made_rows(40, seed=1)
    metrics = Baselines(train, made_head("name0", "name1")).metrics(test)
    assert metrics["baseline_majority_accuracy"] == test.labels.count("name1") / 40
    assert all(name.startswith("baseline_majority_") for name in metrics)


def test_regression_sees_the_overlap_of_a_pair():
    train, test = made_pairs(300), made_pairs(60, seed=1)
    fitted = Baselines(train, made_head())
    metrics = fitted.metrics(test)
    assert metrics["baseline_mean_pearson"] == metrics["baseline_mean_spearmanr"] == 0.0
    assert metrics["baseline_words_combined_score"] > 0.9
    assert set(metrics) == {
        f"baseline_{kind}_{name}"
        for kind in ("mean", "words", "characters")
        for name in ("pearson", "spearmanr", "combined_score", "rmse")
    }

    vectorizer, model = fitted.models["words"]
    of_train, of_test = (text_features(vectorizer, rows).toarray() for rows in (train, test))
    exact = Ridge(alpha=model.alpha).fit(of_train, np.array(train.labels, float))
    assert np.allclose(fitted.scores(test)["words"][:, 0], exact.predict(of_test), atol=0.02)
