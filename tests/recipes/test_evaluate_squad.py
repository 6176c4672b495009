"""recipes/evaluate_squad.py: the official script's JSON, a warning for missing predictions, one line for bad input."""

import json

import pytest
from helpers.recipe_runs import recipe

CONTEXT = "Zoë saw the Alps and two cats."
QAS = [
    {"id": "a", "question": "What?", "answers": [{"text": "Alps", "answer_start": 12}]},
    {"id": "b", "question": "Who?", "answers": [{"text": "two cats", "answer_start": 21}]},
    {"id": "c", "question": "Why?", "answers": [], "is_impossible": True},
]


@pytest.fixture
def place(tmp_path):
    paragraphs = [{"context": CONTEXT, "qas": QAS}]
    files = {
        "data": {"version": "v2.0", "data": [{"title": "", "paragraphs": paragraphs}]},
        "predictions": {"a": "the Alps", "b": "cats", "c": "Alps"},
        "odds": {"a": 0.2, "b": 0.4, "c": 0.6},
    }
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


def evaluate(place, *words):
    return recipe("evaluate_squad")([str(place / "data.json"), str(place / "predictions.json"), *words])


def test_the_json_of_the_official_script(place, capsys):
    assert evaluate(place, "--na_prob_file", str(place / "odds.json")) == 0
    # As evaluate-v2.0.py prints it for these files
    assert (
        capsys.readouterr().out
        == """{
  "exact": 33.333333333333336,
  "f1": 55.55555555555555,
  "total": 3,
  "HasAns_exact": 50.0,
  "HasAns_f1": 83.33333333333333,
  "HasAns_total": 2,
  "NoAns_exact": 0.0,
  "NoAns_f1": 0.0,
  "NoAns_total": 1,
  "best_exact": 66.66666666666667,
  "best_exact_thresh": 0.2,
  "best_f1": 88.88888888888887,
  "best_f1_thresh": 0.4
}
"""
    )


def test_the_threshold_of_the_odds(place, capsys):
    assert evaluate(place, "--na_prob_file", str(place / "odds.json"), "--na_prob_thresh", "0.5") == 0
    assert json.loads(capsys.readouterr().out)["NoAns_exact"] == 100.0


def test_missing_predictions_count_zero_and_are_reported(place, capsys):
    (place / "predictions.json").write_text(json.dumps({"a": "Alps", "other": "x"}))
    assert evaluate(place) == 0
    said = capsys.readouterr()
    metrics = json.loads(said.out)
    assert (metrics["exact"], metrics["total"]) == (pytest.approx(100 / 3), 3)
    assert said.err == (f"warning: {place}/predictions.json: 2 of 3 questions have no prediction and count 0: b, c\n")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("data.json", "[]", "data.json: contains no questions; give"),
        ("predictions.json", '{"a": 1}', "predictions.json: not a JSON object from question id to str; give"),
        ("odds.json", '{"a": 0}', "odds.json: question b is missing; give the odds of every question"),
    ],
)
def test_bad_files(place, capsys, name, content, expected):
    (place / name).write_text(content)
    assert evaluate(place, "--na_prob_file", str(place / "odds.json")) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith(f"error: {place}/{expected}")
