"""Answers one question with a fine-tuned model. (transformers 5.3 removed `pipeline("question-answering")`.)"""

from typing import TypedDict, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bert_hf.finetuning.squad.decoding import best_spans, decode
from bert_hf.finetuning.squad.files import Question
from bert_hf.finetuning.squad.windows import WindowCollator, Windows, WindowShape, make_windows

_BATCH = 16  # windows


class FoundAnswer(TypedDict):
    """An answer as the former pipeline gave it: `context[start:end] == answer`; "" at 0 where there is none."""

    score: float  # probability among the `n_best` spans and, where it is allowed, no answer
    start: int
    end: int
    answer: str


@torch.no_grad()
def answer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    question: str,
    context: str,
    *,
    max_seq_length: int | None = None,
    doc_stride: int | None = None,
    n_best: int = 20,
    max_query_length: int | None = None,
    max_answer_length: int = 30,
) -> FoundAnswer:
    """The answer to a question in a context of any length, by a stock model with an answer head.

    A model whose configuration has a `null_score_diff_threshold` may find that the context does not hold the answer.

    Args:
        max_seq_length: tokens of a window; by default 384, or the model's positions if there are fewer.
        doc_stride: tokens that neighbouring windows share; by default a third of a window.
        max_query_length: tokens of the question, of which more are cut; by default 64, or half a window if that is
            fewer.
        max_answer_length: tokens of the answer.

    Raises:
        InputError: `doc_stride` is too large.
    """
    length = max_seq_length or min(384, model.config.max_position_embeddings)
    stride = length // 3 if doc_stride is None else doc_stride
    shape = WindowShape(length, stride, max_query_length or min(64, length // 2))
    windows = make_windows([Question("asked", question, context, answers=())], tokenizer, shape)

    # The best span of all, or none
    found = _spans_of_windows(model, windows, WindowCollator(tokenizer), n_best, max_answer_length)
    prediction = next(decode(windows, found, n_best))
    threshold = getattr(model.config, "null_score_diff_threshold", None)
    none = prediction.text(threshold) == ""
    span = prediction.null if none else prediction.spans[0]
    score = dict(prediction.ranked(with_null=threshold is not None))[span]
    return FoundAnswer(score=score, start=span.start, end=span.end, answer=span.text)


def _spans_of_windows(
    model: PreTrainedModel, windows: Windows, collate: WindowCollator, n_best: int, max_answer_length: int
) -> list[Tensor]:
    """The fields of `WindowSpans` over all windows."""
    training = model.training
    model.eval()  # without dropout

    found = []
    for begin in range(0, len(windows), _BATCH):
        rows = windows.data.select(range(begin, min(begin + _BATCH, len(windows))))
        batch = {name: tensor.to(model.device) for name, tensor in collate(cast(list[dict], list(rows))).items()}

        outputs = model(**{name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")})
        logits = outputs.start_logits, outputs.end_logits
        found.append(best_spans(*logits, batch["in_context"], batch["limits"], n_best, max_answer_length))

    model.train(training)
    return [torch.cat(column).cpu() for column in zip(*found, strict=True)]
