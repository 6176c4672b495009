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


def normalized(answer: str) -> str:
    """Return the answer without case, ASCII punctuation, articles and repeated spaces.

    >>> normalized("The  U.S.-based band")
    'usbased band'
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_and_f1(prediction: str, gold: Sequence[str]) -> tuple[float, float]:
    """Return (exact match, F1 over words) of a prediction, each the maximum over the gold answers.

    Without a gold answer "" is the right prediction.
    """
    answers = [answer for answer in map(normalized, gold) if answer] or [""]
    words = normalized(prediction)
    exact = max(float(words == answer) for answer in answers)
    return exact, max(_f1(words.split(), answer.split()) for answer in answers)


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
        odds: by question id, the odds of no answer (large: none), of every prediction. They add
            `best_exact`, `best_exact_thresh`, `best_f1`, `best_f1_thresh`.
        threshold: a question with odds above it counts as predicted "".
        answer_nothing: see `best_threshold`.

    Returns:
        `exact`, `f1`, `total`; the same with `HasAns_` and `NoAns_`, if there are such questions; `best_…`.
    """
    predicted = [name for name in gold if name in predictions]
    scores_of_texts = {name: exact_and_f1(predictions[name], gold[name]) for name in predicted}

    scores = dict(scores_of_texts)
    if odds is not None:  # above the threshold "" counts as predicted, which is correct if there is no answer
        unanswered = [name for name in predicted if odds[name] > threshold]
        scores |= {name: (float(not gold[name]), float(not gold[name])) for name in unanswered}

    metrics = _means(scores, list(gold))
    for prefix, wanted in (("HasAns_", True), ("NoAns_", False)):
        names = [name for name, answers in gold.items() if bool(answers) == wanted]
        if names:
            metrics |= {prefix + metric: value for metric, value in _means(scores, names).items()}

    if odds is not None:
        for number, metric in enumerate(("exact", "f1")):
            column = {name: pair[number] for name, pair in scores_of_texts.items()}
            best_sum, best_at = best_threshold(column, gold, predictions, odds, answer_nothing)
            metrics |= {f"best_{metric}": 100.0 * best_sum / len(gold), f"best_{metric}_thresh": best_at}
    return metrics


def _means(scores: Mapping[str, tuple[float, float]], names: list[str]) -> dict[str, float]:
    """Return the means over these questions, in percent; those without a score count 0."""
    pairs = [scores.get(name, (0.0, 0.0)) for name in names]
    exact = sum(pair[0] for pair in pairs)
    f1 = sum(pair[1] for pair in pairs)
    return {"exact": 100.0 * exact / len(names), "f1": 100.0 * f1 / len(names), "total": len(names)}


def best_threshold(
    scores: Mapping[str, float],
    gold: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    odds: Mapping[str, float],
    answer_nothing: float = 0.0,
) -> tuple[float, float]:
    """Return (sum of the scores, threshold) at the best threshold: questions with odds above it count as predicted "".

    As in the official script, questions enter one by one in ascending order of their odds, also questions with equal
    odds, which no threshold separates (in the order of `odds`); and 0.0 is reported where it is best to answer
    nothing, whatever the odds are.

    `scores` are of the predicted questions; `answer_nothing` replaces 0.0 as the threshold of answering nothing.
    """
    total = float(sum(not gold[name] for name in scores))  # nothing is answered
    best_total, threshold = total, answer_nothing

    for name in sorted(odds, key=lambda name: odds[name]):
        if name not in scores:
            continue
        if gold[name]:
            total += scores[name]
        elif predictions[name]:  # "" was right, this answer is wrong
            total -= 1
        if total > best_total:
            best_total, threshold = total, odds[name]
    return best_total, threshold


def evaluate_files(data: str, predictions: str, odds: str | None = None, threshold: float = 1.0) -> dict[str, float]:
    """Return the metrics of a prediction file; warn on stderr of questions without a prediction, which count 0."""
    gold: dict[str, list[str]] = {}
    for row in question_rows(data):
        name = str(row.values.get("id"))
        if row.values.get("id") is None or name in gold:
            raise row.error(f"question {name}: the id is missing or occurs again", "give each question an id")
        gold[name] = [text for text, _ in answers_with_starts(row)]
    if not gold:
        raise InputError("contains no questions", where=data, remedy="give SQuAD's JSON, or rows of it")
    texts = read_by_id(predictions, str)
    odds_by_id = None if odds is None else read_by_id(odds, float, int)

    if missing := [name for name in gold if name not in texts]:
        count = f"{len(missing):,} of {len(gold):,} questions have no prediction and count 0"
        print(f"warning: {predictions}: {count}: {shorten_list(missing)}", file=sys.stderr, flush=True)
    for name in gold:
        if odds_by_id is not None and name in texts and name not in odds_by_id:
            remedy = "give the odds of every question that has a prediction"
            raise InputError(f"question {name} is missing", where=odds, remedy=remedy)

    return official_metrics(gold, texts, odds_by_id, threshold)
