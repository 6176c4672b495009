"""Question-answering inputs: overlapping windows of a context, each preceded by its question.

A window is `[CLS] question [SEP] a part of the context [SEP]`. Neighbouring windows share `doc_stride` tokens of the
context, so that an answer at the end of one is whole in the next.

    max_seq_length 9, doc_stride 2, question q r, context of 7 tokens a … g: 4 of them fit into a window

    window 0   [CLS] q r [SEP] a b c d [SEP]      predicts a, b, c, …, and c d: as much context in both, so the first
    window 1   [CLS] q r [SEP] c d e f [SEP]      predicts d, e, …
    window 2   [CLS] q r [SEP] e f g [SEP]        predicts f, g, …

A span that several windows hold is predicted in the one where it has most context (`answer_spans.predicted_here`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import datasets
import numpy as np
import pyarrow as pa
from datasets.table import InMemoryTable
from transformers import PreTrainedTokenizerBase

from bert_hf.data.text.tokenization import InputTemplate
from bert_hf.errors import InputError
from bert_hf.finetuning.rows.questions import Question

_BATCH = 256  # texts that are tokenized at once: their offsets are Python objects until then


class ContextTokens(NamedTuple):
    """The tokens of a context: their ids, and begin and end of each in characters; (tokens,) each."""

    ids: np.ndarray
    begins: np.ndarray
    ends: np.ndarray


@dataclass(frozen=True)
class ContextWindows:
    """Questions as inputs of the network: W windows over their contexts, in the order of the questions.

    Attributes:
        features: one row per window: `input_ids`, `token_type_ids`, `length`, `ranges` (begin and end of the context's
            part in the window before, this one and the next, in positions of this one; 0 and 0: there is none),
            `labels` (first and last token of the answer; 0 and 0, which is [CLS]: not, or not wholly, here) unless no
            question has known answers.
        question_of_window: (W,) indices of `questions`.
        shift: (W,) the token at position p of the window is token p + shift of the context.
        contexts: the distinct contexts.
        context_of_question: (questions,) indices of `contexts`.
    """

    features: datasets.Dataset
    questions: Sequence[Question]
    question_of_window: np.ndarray
    shift: np.ndarray
    contexts: list[ContextTokens]
    context_of_question: np.ndarray


def answer_tokens(context: ContextTokens, text: str, start: int) -> tuple[int, int] | None:
    """Return (first, last) token in a context of the answer `text` at character `start`; None where it has no token.

    White space at both ends does not count. A token of which only a part lies in the answer belongs to it.
    """
    begin = start + len(text) - len(text.lstrip())
    end = start + len(text.rstrip())
    first = int(np.searchsorted(context.ends, begin, side="right"))
    last = int(np.searchsorted(context.begins, end, side="left")) - 1
    return (first, last) if first <= last else None


def make_context_windows(
    questions: Sequence[Question],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int = 384,
    doc_stride: int = 128,
    max_query_length: int = 64,
) -> ContextWindows:
    """Return the windows of all questions, which share `doc_stride` tokens. Each distinct context is tokenized once.

    A question of more than `max_query_length` tokens is cut, as in the 2018 code. A window that does not hold the
    whole (first) answer has [CLS] as its label.

    Raises:
        InputError: a question leaves no space for its context, or not more than `doc_stride` tokens.
    """
    texts = list(dict.fromkeys(question.context for question in questions))
    contexts = list(_tokenize(texts, tokenizer))
    number_of_text = {text: number for number, text in enumerate(texts)}
    context_of_question = np.array([number_of_text[question.context] for question in questions], np.int32)
    question_tokens = _tokenize([question.question for question in questions], tokenizer)
    template = InputTemplate(tokenizer)
    available = max_seq_length - tokenizer.num_special_tokens_to_add(pair=True)

    windows: list[dict[str, Any]] = []
    for number, (question, tokens) in enumerate(zip(questions, question_tokens, strict=True)):
        ids = tokens.ids[:max_query_length].tolist()
        context = contexts[context_of_question[number]]
        for window in _windows_of(question, ids, context, template, available, doc_stride):
            windows.append({"question": number, **window})

    columns = {name: [window[name] for window in windows] for name in windows[0]}
    question_of_window, shift = (np.array(columns.pop(name), np.int32) for name in ("question", "shift"))

    if all(question.answers is None for question in questions):
        del columns["labels"]

    # Without a fingerprint, datasets pickles the whole table to compute one; nothing here is cached by it
    features = datasets.Dataset(InMemoryTable(pa.table(columns)), fingerprint="windows")
    return ContextWindows(features, questions, question_of_window, shift, contexts, context_of_question)


def _tokenize(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> Iterator[ContextTokens]:
    """Yield the tokens of each context or question, without special tokens."""
    for begin in range(0, len(texts), _BATCH):
        batch = texts[begin : begin + _BATCH]
        encoded = tokenizer(batch, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        for ids, offsets in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
            begins, ends = np.array(offsets, np.int32).reshape(-1, 2).T  # a text may have no tokens
            yield ContextTokens(np.array(ids, np.int32), begins.copy(), ends.copy())


def _windows_of(
    question: Question, ids: list[int], context: ContextTokens, template: InputTemplate, available: int, stride: int
) -> Iterator[dict[str, Any]]:
    """Yield the windows of a question (tokens `ids`) as columns of `ContextWindows.features` and their `shift`."""
    tokens = len(context.ids)
    capacity = available - len(ids)  # for tokens of the context
    if capacity < 1 or (tokens > capacity and stride >= capacity):
        what = f"question {question.id} has {len(ids)} tokens, which leave only {max(0, capacity)} for its context"
        remedy = "raise --max_seq_length, or lower --doc_stride or --max_query_length"
        raise InputError(what, where=question.file or None, line=question.line, remedy=remedy)

    answer = None
    if question.answers:
        answer = answer_tokens(context, question.answers[0].text, question.answers[0].start)

    # Begin and end of each window in the context; also an empty context has one
    starts = range(1) if tokens <= capacity else range(0, tokens - stride, capacity - stride)
    bounds = [(start, min(start + capacity, tokens)) for start in starts]
    with_none = [None, *bounds, None]  # the first window has none before it, the last none after it
    for window, (start, end) in enumerate(bounds):
        inputs = template.join(ids, context.ids[start:end].tolist())
        shift = start - inputs.starts[1]  # position p of the window is token p + shift of the context
        ranges = []
        for limits in with_none[window : window + 3]:  # of the window before, this one and the next
            ranges += [0, 0] if limits is None else [limits[0] - shift, limits[1] - shift]
        labels = (0, 0)
        if answer and start <= answer[0] and answer[1] < end:
            labels = (answer[0] - shift, answer[1] - shift)

        yield {
            "input_ids": np.array(inputs.input_ids, np.int32),
            "token_type_ids": np.array(inputs.token_type_ids, np.int8),
            "length": len(inputs.input_ids),
            "labels": labels,
            "ranges": ranges,
            "shift": shift,
        }
