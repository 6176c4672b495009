"""Computes SQuAD's official metrics: exact match, F1, and the best thresholds of the no-answer odds.

The algorithm of the official script (rajpurkar/SQuAD-explorer @ 13f82e35, evaluate-v2.0.py), with one difference: a
question without a prediction counts 0 here, as in the script of version 1.1; the script of 2.0 fails or leaves it out.
"""

import re
import string
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

from bert_hf.console import shorten_list
from bert_hf.errors import InputError
from bert_hf.finetuning.rows.questions import answers_with_starts, question_rows, read_by_id

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(answer: str) -> str:
    """Return the answer without case, ASCII punctuation, articles and repeated spaces.

    >>> normalize_answer("The  U.S.-based band")
    'usbased band'
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_and_f1(prediction: str, gold: Sequence[str]) -> tuple[float, float]:
    """Return (exact match, F1 over words) of a prediction, each the maximum over the gold answers.

    Without a gold answer "" is the right prediction.
    """
    answers = [answer for answer in map(normalize_answer, gold) if answer] or [""]
    predicted = normalize_answer(prediction)
    exact = max(float(predicted == answer) for answer in answers)
    f1 = max(_f1(predicted.split(), answer.split()) for answer in answers)
    return exact, f1


def _f1(words: list[str], gold: list[str]) -> float:
    """Return F1 over the words of two answers; 1.0 if both are empty."""
    if not words or not gold:
        return float(words == gold)

    shared = (Counter(words) & Counter(gold)).total()
    if shared == 0:
        return 0.0
    precision = shared / len(words)
    recall = shared / len(gold)
    return 2 * precision * recall / (precision + recall)


def official_metrics(
    gold: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    odds: Mapping[str, float] | None = None,
    threshold: float = 1.0,
    answer_nothing: float = 0.0,
) -> dict[str, float]:
    """Return the metrics under the names and in the order of the official script, in percent.

    Args:
        gold: gold answers by question id, at least one question; an empty list: the question has no answer.
        predictions: answer texts by question id, "" for none. A question that is missing counts 0; others are ignored.
        odds: by question id, the odds of no answer (large: none), for every prediction. They add
            `best_exact`, `best_exact_thresh`, `best_f1`, `best_f1_thresh`.
        threshold: a question with odds above it counts as predicted "".
        answer_nothing: see `best_threshold`.

    Returns:
        `exact`, `f1`, `total`; the same with `HasAns_` and `NoAns_`, if there are such questions; `best_…`.
    """
    predicted_ids = [question for question in gold if question in predictions]
    text_scores = {question: exact_and_f1(predictions[question], gold[question]) for question in predicted_ids}

    scores = dict(text_scores)
    for question in predicted_ids:
        if odds is not None and odds[question] > threshold:
            is_right = float(not gold[question])  # "" counts as predicted
            scores[question] = is_right, is_right

    metrics = _means(scores, list(gold))
    has_answer = [question for question, answers in gold.items() if answers]
    no_answer = [question for question, answers in gold.items() if not answers]
    for prefix, questions in (("HasAns_", has_answer), ("NoAns_", no_answer)):
        if questions:
            metrics |= {prefix + metric: value for metric, value in _means(scores, questions).items()}

    if odds is not None:
        exact_scores = {question: exact for question, (exact, _) in text_scores.items()}
        f1_scores = {question: f1 for question, (_, f1) in text_scores.items()}
        for metric, metric_scores in (("exact", exact_scores), ("f1", f1_scores)):
            best_sum, best_at = best_threshold(metric_scores, gold, predictions, odds, answer_nothing)
            metrics |= {f"best_{metric}": 100.0 * best_sum / len(gold), f"best_{metric}_thresh": best_at}
    return metrics


def _means(scores: Mapping[str, tuple[float, float]], questions: list[str]) -> dict[str, float]:
    """Return the means over these questions, in percent, and their number; those without a score count 0."""
    pairs = [scores.get(question, (0.0, 0.0)) for question in questions]
    exact_sum = sum(exact for exact, _ in pairs)
    f1_sum = sum(f1 for _, f1 in pairs)
    count = len(questions)
    return {"exact": 100.0 * exact_sum / count, "f1": 100.0 * f1_sum / count, "total": count}


def best_threshold(
    scores: Mapping[str, float],
    gold: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    odds: Mapping[str, float],
    answer_nothing: float = 0.0,
) -> tuple[float, float]:
    """Return (sum of the scores, threshold) of the best threshold: questions with odds above it count as predicted "".

    As in the official script, questions enter one by one in ascending order of their odds, also questions with equal
    odds, which no threshold separates (in the order of `odds`); and 0.0 is reported where it is best to answer
    nothing, whatever the odds are.

    All mappings are by question id: `scores` of the predicted texts, `gold` answers, `predictions`, `odds` of no
    answer. `answer_nothing` replaces 0.0 as the threshold of answering nothing.
    """
    total = float(sum(not gold[question] for question in scores))  # nothing is answered
    best_total, threshold = total, answer_nothing

    for question in sorted(odds, key=lambda question: odds[question]):
        if question not in scores:
            continue
        if gold[question]:
            total += scores[question]
        elif predictions[question]:  # "" was right, this answer is wrong
            total -= 1
        if total > best_total:
            best_total, threshold = total, odds[question]
    return best_total, threshold


def evaluate_files(
    gold_file: str, predictions_file: str, odds_file: str | None = None, threshold: float = 1.0
) -> dict[str, float]:
    """Return `official_metrics` of two or three files; warn on stderr of missing predictions, which count 0."""
    gold: dict[str, list[str]] = {}
    for row in question_rows(gold_file):
        question = str(row.values.get("id"))
        if row.values.get("id") is None or question in gold:
            raise row.error(f"question {question}: the id is missing or occurs again", "give each question an id")
        gold[question] = [text for text, _ in answers_with_starts(row)]
    if not gold:
        raise InputError("contains no questions", where=gold_file, remedy="give SQuAD's JSON, or rows of it")
    texts = read_by_id(predictions_file, str)
    odds = None if odds_file is None else read_by_id(odds_file, float, int)

    if missing := [question for question in gold if question not in texts]:
        count = f"{len(missing):,} of {len(gold):,} questions have no prediction and count 0"
        print(f"warning: {predictions_file}: {count}: {shorten_list(missing)}", file=sys.stderr, flush=True)
    for question in gold:
        if odds is not None and question in texts and question not in odds:
            remedy = "give the odds of every question that has a prediction"
            raise InputError(f"question {question} is missing", where=odds_file, remedy=remedy)

    return official_metrics(gold, texts, odds, threshold)
