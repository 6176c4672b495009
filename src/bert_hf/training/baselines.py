"""Baselines for pre-training (unigram, trigram, majority) on the held-out examples."""

import numpy as np

from bert_hf.data.corpus.store import Corpus
from bert_hf.data.examples.collator import DataCollatorForPreTraining
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.models.functional import IGNORE_INDEX


def pretraining_baselines(
    examples: PreTrainingExamples, collator: DataCollatorForPreTraining, corpus: Corpus
) -> dict[str, float]:
    """MLM loss of token frequencies (one added to each count), and accuracy of the majority class of the pairs.

    Args:
        examples: the held-out ones.
        corpus: the training text.
    """
    features = [examples[index] for index in range(len(examples))]
    labels = np.concatenate([collator.example(feature)["labels"] for feature in features])

    counts = corpus.unigram_counts(len(collator.tokenizer)) + 1
    losses = -np.log((counts / counts.sum())[labels[labels != IGNORE_INDEX]])
    result = {"unigram_mlm_loss": float(losses.mean())}

    if name := examples.objective.metric:
        share = float(np.mean([feature["next_sentence_label"] for feature in features]))
        result[f"majority_{name}_accuracy"] = max(share, 1 - share)
        result[f"{name}_pairs"] = len(features)
    return result
