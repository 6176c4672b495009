"""SQuAD's official figures, by literals that the official script printed."""

import pytest

from bert_hf.finetuning.metrics.squad import best_threshold, exact_and_f1, normalize_answer, official_metrics


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  U.S.-based band", "usbased band"),
        ("an apple, a day", "apple day"),
        ("anthem of Atlanta", "anthem of atlanta"),  # articles are words
        ("“the” £5–6", "“ ” £5–6"),  # ASCII punctuation only
        ("the", ""),
    ],
)
def test_normalized(text, expected):
    assert normalize_answer(text) == expected


@pytest.mark.parametrize(
    ("prediction", "gold", "expected"),
    [
        ("Denver Broncos", ["Denver Broncos", "Broncos"], (1.0, 1.0)),
        ("the Denver", ["Denver Broncos"], (0.0, 2 / 3)),
        ("x x y", ["x z"], (0.0, 0.4)),  # a word counts as often as both have it
        ("", [], (1.0, 1.0)),
        ("x", [], (0.0, 0.0)),
        ("", ["x"], (0.0, 0.0)),
        ("", ["the"], (1.0, 1.0)),  # a gold answer of which nothing is left is none
        ("the", ["x", "the"], (0.0, 0.0)),
    ],
)
def test_one_answer(prediction, gold, expected):
    assert exact_and_f1(prediction, gold) == pytest.approx(expected)


GOLD = {"a": ["Alps"], "b": ["two cats", "cats"], "c": [], "d": [], "e": ["Bonn"]}
TEXTS = {"a": "the Alps", "b": "three cats", "c": "", "d": "Rome", "e": "Berlin"}
ODDS = {"a": 0.1, "b": 0.4, "c": 0.9, "d": 0.7, "e": 1.5}


def test_figures_of_the_official_script():
    # Printed by evaluate-v2.0.py for these questions, predictions and odds
    assert official_metrics(GOLD, TEXTS, ODDS) == pytest.approx(
        {
            "exact": 40.0,
            "f1": 53.33333333333333,
            "total": 5,
            "HasAns_exact": 33.333333333333336,
            "HasAns_f1": 55.55555555555555,
            "HasAns_total": 3,
            "NoAns_exact": 50.0,
            "NoAns_f1": 50.0,
            "NoAns_total": 2,
            "best_exact": 60.0,
            "best_exact_thresh": 0.1,
            "best_f1": 73.33333333333333,
            "best_f1_thresh": 0.4,
        },
        abs=1e-12,
    )


def test_odds_above_the_threshold_count_as_no_answer():
    metrics = official_metrics(GOLD, TEXTS, ODDS, threshold=0.3)
    assert (metrics["HasAns_exact"], metrics["NoAns_exact"]) == (pytest.approx(100 / 3), 100.0)


def test_a_question_without_prediction_counts_zero():
    texts = {name: text for name, text in TEXTS.items() if name not in ("a", "c")}
    metrics = official_metrics(GOLD, {**texts, "other": "x"}, ODDS)
    assert (metrics["total"], metrics["exact"], metrics["NoAns_exact"]) == (5, 0.0, 0.0)
    assert metrics["best_f1"] == pytest.approx(100 * (1 + 2 / 3) / 5)  # d as no answer, b


def test_without_odds_and_without_unanswerable_questions():
    gold = {name: answers for name, answers in GOLD.items() if answers}
    assert list(official_metrics(gold, TEXTS)) == ["exact", "f1", "total", "HasAns_exact", "HasAns_f1", "HasAns_total"]


def test_the_threshold_where_it_is_best_to_answer_nothing():
    scores = dict.fromkeys("cd", 0.0)
    assert best_threshold(scores, GOLD, {"c": "x", "d": "y"}, ODDS) == (2.0, 0.0)
    assert best_threshold(scores, GOLD, {"c": "x", "d": "y"}, ODDS, answer_nothing=-1.0) == (2.0, -1.0)
