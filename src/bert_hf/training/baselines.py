"""Metrics of models without a network on the held-out examples, to compare a pre-trained model with."""

import numpy as np

from bert_hf.data.corpus.store import Corpus
from bert_hf.data.examples.collator import DataCollatorForPreTraining
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.data.examples.trigrams import TrigramModel
from bert_hf.models.functional import IGNORE_INDEX

_MIN_TRIGRAM_TOKENS = 500_000  # tokens: trigrams of less text predict little
_MAX_TRIGRAM_TOKENS = 32_000_000  # tokens: their counts take a gigabyte


def pretraining_baselines(
    examples: PreTrainingExamples, collator: DataCollatorForPreTraining, corpus: Corpus, planned_tokens: int
) -> dict:
    """MLM loss of token frequencies and of a trigram model, and accuracy of the majority class of the pairs.

    Frequencies are smoothed by adding one to each count. The trigram model is measured where there is enough text; it
    sees the two left neighbours of a masked token as they were before masking.

    Args:
        examples: the held-out ones.
        corpus: the training text.
        planned_tokens: how much of it the run sees; the trigram model is made of as much.
    """
    features = [examples[index] for index in range(len(examples))]
    words, contexts = _masked_tokens(features, collator)

    counts = corpus.unigram_counts(len(collator.tokenizer)) + 1
    result = {"unigram_mlm_loss": float(-np.log((counts / counts.sum())[words]).mean())}

    tokens = _first_tokens(corpus, planned_tokens)
    if len(tokens) >= _MIN_TRIGRAM_TOKENS:
        losses = TrigramModel(tokens, len(counts)).losses(contexts, words)
        result["trigram_mlm_loss"] = float(losses.mean())

    if name := examples.objective.metric:
        share = float(np.mean([feature["next_sentence_label"] for feature in features]))
        result[f"majority_{name}_accuracy"] = max(share, 1 - share)
        result[f"{name}_pairs"] = len(features)
    return result


def _masked_tokens(features: list[dict], collator: DataCollatorForPreTraining) -> tuple[np.ndarray, np.ndarray]:
    """(M,) the masked tokens of all examples and (M, 2) their left neighbours, nearest last, all as before masking.

    input_ids  [CLS] the [MASK] sat     labels  -100 -100 cat -100
    words      cat                      contexts  [CLS] the
    """
    words, contexts = [], []
    for feature in features:
        example = collator.example(feature)
        is_masked = example["labels"] != IGNORE_INDEX
        original = np.where(is_masked, example["labels"], example["input_ids"])

        masked = np.flatnonzero(is_masked)
        words.append(original[masked])
        contexts.append(original[np.maximum(masked[:, None] - (2, 1), 0)])
    return np.concatenate(words), np.concatenate(contexts)


def _first_tokens(corpus: Corpus, planned: int) -> np.ndarray:
    """(T,) tokens of the first documents of a corpus: as many as a run sees, at most 32 million."""
    window = corpus.window(corpus.head())
    wanted = min(planned, _MAX_TRIGRAM_TOKENS)
    parts = []
    for start, end in zip(window.document_starts.tolist(), window.document_ends.tolist(), strict=True):
        if wanted <= 0:
            break
        parts.append(window.ids(start, end))
        wanted -= len(parts[-1])
    return np.concatenate(parts)
