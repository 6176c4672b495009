"""Finds and writes the best answer spans: exactly, on the device in each window, then over all windows of a question.

The score of a span is the sum of the logits of its first and last token (Devlin et al. 2019, section 4.2). Of equal
scores the span that begins first counts, of those the one that ends first.
"""

import json
import math
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.special import softmax
from torch import Tensor

from bert_hf.config.files import write_durably
from bert_hf.finetuning.features.context_windows import ContextTokens, ContextWindows
from bert_hf.finetuning.rows.questions import Question


def best_spans(
    start_logits: Tensor, end_logits: Tensor, ranges: Tensor, n_best: int = 20, max_answer_length: int = 30
) -> tuple[Tensor, ...]:
    """Return the K = `n_best` best spans start ≤ end < start + `max_answer_length` of each window, exactly.

    All spans that are predicted in the window are compared. The usual shortcut, the best starts with the best ends,
    may miss the best span.

    Args:
        start_logits, end_logits: (B, L).
        ranges: (B, 6) begin and end of the context in the window before, this one and the next, see `ContextWindows`.

    Returns:
        (B, K) starts and ends (positions in the window), start logits (-inf where a window has fewer spans) and end
        logits, best first; and (B, 2) the logits of [CLS], which mean "no answer".
    """
    null_logits = torch.stack([start_logits[:, 0], end_logits[:, 0]], dim=1).float()
    start_logits, end_logits = start_logits.float(), end_logits.float()
    max_answer_length = min(max_answer_length, start_logits.shape[1])
    ends = F.pad(end_logits, (0, max_answer_length - 1), value=-math.inf).unfold(1, max_answer_length, 1)
    scores = start_logits[:, :, None] + ends  # (B, L, M), M = max_answer_length, of the span from i to i + m
    scores = scores.masked_fill(~predicted_here(ranges, *scores.shape[1:]), -math.inf)

    scores = scores.flatten(1)  # (B, L × M), spans in the order of their start, then of their end
    if scores.shape[1] < n_best:
        scores = F.pad(scores, (0, n_best - scores.shape[1]), value=-math.inf)

    # The first of the best scores; entries that are not spans get position 0 and -inf
    scores, chosen = scores.sort(dim=1, descending=True, stable=True)
    scores, chosen = scores[:, :n_best], chosen[:, :n_best]  # (B, K)
    is_span = scores > -math.inf
    starts = (chosen // max_answer_length).where(is_span, 0)
    ends = (starts + chosen % max_answer_length).where(is_span, 0)
    start_logits = start_logits.gather(1, starts).where(is_span, -math.inf)
    end_logits = end_logits.gather(1, ends).where(is_span, 0.0)
    return starts, ends, start_logits, end_logits, null_logits


def predicted_here(ranges: Tensor, length: int, max_answer_length: int) -> Tensor:
    """Return (B, L, M) whether the span from token i to i + m is predicted in this window; `ranges`: see `best_spans`.

    A span is predicted in the window where its margin is widest: where the smaller of the numbers of tokens to its
    left and right is largest, a hundredth of the window's part of the passage added; of equal ones in the first. For
    single tokens that is the rule of the 2018 code (google-research/bert @ eedf5716, run_squad.py,
    `_check_is_max_context`). That code applies it to the first token of a span, and loses spans that the window of
    that token does not hold whole.
    """
    first = torch.arange(length, device=ranges.device)[:, None]  # (L, 1)
    last = first + torch.arange(max_answer_length, device=ranges.device)  # (L, M)

    def margins(window: Tensor) -> Tensor:
        """Return the spans' margins in a window, times 100 to stay integers; -1 where it does not hold the span."""
        begin, end = window.unbind(1)
        smaller = torch.minimum(first - begin, end - 1 - last)
        return (100 * smaller + end - begin).where(smaller >= 0, -1)

    before, here, after = map(margins, ranges[:, :, None, None].split(2, dim=1))
    return (here > before) & (here >= after)


class Span(NamedTuple):
    """A part of the context in characters, `context[start:end]`, with its logits; an empty `text`: no answer."""

    text: str
    start: int
    end: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        """Return the sum of both logits."""
        return self.start_logit + self.end_logit


@dataclass(frozen=True)
class Prediction:
    """The best spans of a question over all its windows, best first, and the span of [CLS]: no answer.

    Different spans may have the same text, where it occurs more than once.
    """

    question: Question
    spans: list[Span]
    null: Span

    @property
    def null_odds(self) -> float:
        """Return the score of [CLS] minus the best span's (0 where the context is empty). Large: no answer."""
        return self.null.score - (self.spans[0].score if self.spans else 0.0)

    def text(self, threshold: float | None = None) -> str:
        """Return the answer; "" where the context is empty, or `null_odds` exceed the threshold, if there is one."""
        if not self.spans or (threshold is not None and self.null_odds > threshold):
            return ""
        return self.spans[0].text

    def probabilities(self, with_null: bool) -> list[tuple[Span, float]]:
        """Return the spans, best first, each with its probability: a softmax over their scores.

        With `with_null`, or without a span, the span of [CLS] is one of them, after those that score as high.
        """
        listed = list(self.spans)
        if with_null or not listed:
            rank = sum(span.score >= self.null.score for span in listed)
            listed.insert(rank, self.null)

        probabilities = softmax([span.score for span in listed])
        return list(zip(listed, probabilities.tolist(), strict=True))


def merge_windows(windows: ContextWindows, best: Iterable[np.ndarray | Tensor]) -> Iterator[Prediction]:
    """Yield the prediction of each question, in order: the K best spans of all of its windows.

    `best` are the results of `best_spans` over all W windows, in their order.
    The null score of a question is the smallest of its windows: in a window that holds the answer, [CLS] is unlikely.
    """
    starts, ends, start_logits, end_logits, null_logits = map(np.asarray, best)
    shift = windows.shift[:, None]
    columns = (starts + shift, ends + shift, start_logits, end_logits)  # (W, K) each; the first two in the context

    limits = np.searchsorted(windows.question_of_window, np.arange(len(windows.questions) + 1))
    for number, question in enumerate(windows.questions):
        its_windows = slice(limits[number], limits[number + 1])
        null_of_window = null_logits[its_windows]
        null = null_of_window[null_of_window.sum(axis=1).argmin()].tolist()
        tokens = windows.contexts[windows.context_of_question[number]]

        # A span is predicted in only one window; of equal scores, the first in the context
        firsts, lasts, first_logits, last_logits = (column[its_windows].ravel() for column in columns)
        scores = first_logits + last_logits  # in the precision in which the windows were ranked
        order = np.lexsort([lasts, firsts, -scores])[: starts.shape[1]]
        spans = []
        for best_one in order[scores[order] > -math.inf]:
            begin, end = span_characters(question.context, tokens, int(firsts[best_one]), int(lasts[best_one]))
            logits = float(first_logits[best_one]), float(last_logits[best_one])
            spans.append(Span(question.context[begin:end], begin, end, *logits))
        yield Prediction(question, spans, Span("", 0, 0, *null))


def span_characters(context: str, tokens: ContextTokens, first: int, last: int) -> tuple[int, int]:
    """Return (begin, end) of the tokens `first` … `last` in characters of the context.

    Combining marks that the tokenizer dropped (the accent of a decomposed é, the variation selector of an emoji)
    belong to the letter before them.
    """
    begin, end = int(tokens.begins[first]), int(tokens.ends[last])
    limit = int(tokens.begins[last + 1]) if last + 1 < len(tokens.begins) else len(context)
    while end < limit and unicodedata.category(context[end]).startswith("M"):
        end += 1
    return begin, end


def write_predictions(folder: Path, predictions: Iterable[Prediction], threshold: float | None) -> None:
    """Write `predictions.json`, `nbest_predictions.json` and, with a threshold, `null_odds.json`.

    The formats of the 2018 code. Without a threshold of `null_odds` every question has an answer (SQuAD 1.1).
    """
    spans, texts, odds = {}, {}, {}  # by question id
    for prediction in predictions:
        question_id = prediction.question.id
        spans[question_id] = [
            {"text": span.text, "probability": value, "start_logit": span.start_logit, "end_logit": span.end_logit}
            for span, value in prediction.probabilities(with_null=threshold is not None)
        ]
        texts[question_id] = prediction.text(threshold)
        odds[question_id] = prediction.null_odds

    contents = {"nbest_predictions": spans, "predictions": texts}
    if threshold is not None:
        contents["null_odds"] = odds
    for name, content in contents.items():
        write_durably(folder / f"{name}.json", json.dumps(content, indent=4) + "\n")
