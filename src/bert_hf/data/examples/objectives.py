"""Pre-training objectives besides masked tokens: how segments are paired and labelled.

An objective is one entry of `OBJECTIVES`. A new one needs that entry, the function that draws its pairs, and an option
that sets `ExampleArguments.nsp` to its key. `plan_epoch` cuts documents into chunks, which an objective arranges. The
model's pair head is always `seq_relationship`, and its label `next_sentence_label`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from bert_hf.data.examples.segment_search import DocumentBounds
from bert_hf.data.examples.sentence_pairs import EpochPlan, gather_chunks, next_sentence_pairs
from bert_hf.errors import InputError


@dataclass(frozen=True)
class Objective:
    """Which segments make an example, and what its label is called in the metrics.

    `arrange(documents, chunks, target, max_tokens, rng)` returns the examples of an epoch. `chunks` (3, chunks) are
    document, first sentence and end (`gather_chunks`); `target` (documents,): tokens that an example should have;
    `max_tokens`: those that the collator leaves of a longer one.
    """

    arrange: Callable[[DocumentBounds, np.ndarray, np.ndarray, int, Generator], EpochPlan]
    prefix: str = ""  # of the label's loss and accuracy, as in `eval_nsp_loss`; empty without a label

    @property
    def pairs(self) -> bool:
        """Return whether an example has two segments and a label."""
        return bool(self.prefix)

    @property
    def special_tokens(self) -> int:
        """Return the number of special tokens of an example: [CLS] A [SEP] B [SEP], or [CLS] A [SEP]."""
        return 3 if self.pairs else 2

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Return the names that `losses.mean_metrics` gives: loss, mlm_loss, mlm_accuracy, nsp_loss, nsp_accuracy."""
        prefixes = ("mlm", self.prefix) if self.pairs else ("mlm",)
        return ("loss", *(f"{prefix}_{kind}" for prefix in prefixes for kind in ("loss", "accuracy")))

    def check_model(self, config: Any, where: str | None = None) -> None:
        """Raise an `InputError` if a model of this configuration cannot tell two segments apart."""
        if self.pairs and getattr(config, "type_vocab_size", 2) < 2:
            problem = f"sentence pairs need 2 token types, the model has {config.type_vocab_size}"
            raise InputError(problem, where=where or "config", remedy='set "type_vocab_size": 2, or pass --nsp false')

    def check_documents(self, documents: DocumentBounds) -> None:
        """Raise an `InputError` if no pairs can be drawn from these documents."""
        count = len(documents.starts)
        if count < 2:
            problem = f"sentence pairs need at least 2 documents, the text has {count}"
            hint = "separate documents by blank lines"
        elif not (documents.ends - documents.starts > 1).any():
            problem = "no document has two sentences, so there is no next sentence"
            hint = "give documents with several sentences"
        else:
            return
        raise InputError(problem, where="corpus", remedy=f"{hint}, or pass --nsp false")


def single_segments(
    documents: DocumentBounds, chunks: np.ndarray, target: np.ndarray, max_tokens: int, rng: Generator
) -> EpochPlan:
    """Return one example per chunk: the chunk as A, no B. (An `Objective.arrange` that needs only `chunks`.)"""
    _, start, end = chunks
    return EpochPlan(start, end, end, end, np.zeros(len(start), np.int64))


# By the value of --nsp
OBJECTIVES: dict[bool | str, Objective] = {
    True: Objective(next_sentence_pairs, "nsp"),
    False: Objective(single_segments),
}


def plan_epoch(
    documents: DocumentBounds, max_tokens: int, short_seq_probability: float, objective: Objective, rng: Generator
) -> EpochPlan:
    """Draw the examples of a window in one epoch, of about `max_tokens` (none is special): the collator truncates.

    Example: documents with sentences of [6, 7, 3, 8, 5], [20, 4] and [9] tokens; max_tokens 10; next-sentence pairs.
        chunks of two or more sentences: [6, 7], [3, 8, 5] and [20, 4]
        cut into A and B: 6 | 7 and 3 | 8, 5 and 20 | 4; a coin replaces the B of the first and of the last
        the replaced segments are exchanged: (6, 4) NOT_NEXT, (3, [8, 5]) IS_NEXT (16 tokens), (20, 7) NOT_NEXT
        for [9], a B of about 9 tokens follows its A: (3, 8) IS_NEXT, and with 9 in its place: (3, 9) NOT_NEXT
    """
    # The target length of each document, one for all of its chunks
    target = np.full(len(documents.starts), max_tokens)
    short = rng.random(len(target)) < short_seq_probability
    target[short] = rng.integers(2, max_tokens + 1, short.sum())

    chunks = gather_chunks(documents, target, min_sentences=2 if objective.pairs else 1)
    return objective.arrange(documents, chunks, target, max_tokens, rng)
