"""Measures the pre-training heads on held-out text: by word frequency, with disturbed context; next sentence."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import cross_val_score
from torch.nn.functional import cross_entropy
from transformers import BertForPreTraining, PreTrainedTokenizerBase

from bert_hf.analysis.probe.data import HeldOutText, MaskedExample, outside_ids
from bert_hf.analysis.probe.network import Subject, batches_by_length, model_inputs
from bert_hf.data.examples.collator import pad_rows
from bert_hf.data.text.tokenization import continuing_pieces
from bert_hf.models.functional import IGNORE_INDEX

BANDS = (10_000, 1_000, 100, 10, 0)  # lowest frequency of each, in tokens of a million
MIN_NSP_PAIRS = 40  # below which next-sentence prediction is not measured


# ---- disturbed examples


class Disturber:
    """Makes disturbed copies of examples; one seed, one sequence of draws.

    Args:
        counts: (V,) token frequencies of the text, from which foreign words are drawn.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, counts: np.ndarray, seed: int):
        self.rng = np.random.default_rng(seed)
        self._continues = continuing_pieces(tokenizer)
        self._outside = outside_ids(tokenizer)
        drawn_from = counts.astype(np.float64)
        drawn_from[self._outside] = 0
        self._frequencies = drawn_from / drawn_from.sum()

    def shuffled(self, example: MaskedExample, segments: tuple[int, ...] = (0, 1)) -> MaskedExample:
        """The words of each segment in random order, whole words, the predicted ones among them.

        The predicted words, and the other words of their segment, stay the same: only order is lost.

            [CLS] a ##b [MASK] d [SEP]   →   [CLS] d a ##b [MASK] [SEP], the prediction moved along
        """
        input_ids, labels = example.input_ids.copy(), example.labels.copy()
        original = example.original()
        for segment in segments:
            inside = np.flatnonzero((example.token_type_ids == segment) & ~np.isin(original, self._outside))
            starts = np.flatnonzero(~self._continues[original[inside]])
            words = [word for word in np.split(inside, starts) if len(word)]
            if words:
                source = np.concatenate([words[number] for number in self.rng.permutation(len(words))])
                input_ids[inside], labels[inside] = example.input_ids[source], example.labels[source]
        return example._replace(input_ids=input_ids, labels=labels)

    def replaced(self, example: MaskedExample, keep_predicted: bool = True) -> MaskedExample:
        """Every context token replaced by a draw from the text's frequencies: only lengths and frequencies are kept.

        Args:
            keep_predicted: leave the predicted positions as they are; else they are replaced, too.
        """
        context = ~np.isin(example.input_ids, self._outside)
        if keep_predicted:
            context &= example.labels == IGNORE_INDEX
        drawn = self.rng.choice(len(self._frequencies), context.sum(), p=self._frequencies)
        input_ids = example.input_ids.copy()
        input_ids[context] = drawn
        return example._replace(input_ids=input_ids)


# ---- forward


class LanguageOutputs(NamedTuple):
    """The outputs of one pass over N examples with M predicted tokens."""

    targets: np.ndarray  # (M,) the tokens to predict
    losses: np.ndarray  # (M,) nats
    correct: np.ndarray  # (M,) bool
    next_sentence: np.ndarray  # (N,) logit of "B follows A" minus that of "B is from another document"
    shown: np.ndarray  # (M,) the input in their place: [MASK], a random token, the token itself


@torch.no_grad()
def language_outputs(model: BertForPreTraining, examples: list[MaskedExample], subject: Subject) -> LanguageOutputs:
    """One pass over the examples, in batches of about equal length: tokens in the order of the batches."""
    found = []
    next_sentence = np.zeros(len(examples))
    for batch in batches_by_length([len(example.input_ids) for example in examples]):
        rows = [examples[row] for row in batch]
        labels = pad_rows([row.labels for row in rows], IGNORE_INDEX).to(subject.device)
        inputs = model_inputs([row._asdict() for row in rows], subject)
        states, pooled = model.bert(**inputs)[:2]

        predicted = labels != IGNORE_INDEX
        logits = model.cls.predictions(states[predicted]).float()  # (M, V): the head on predicted positions alone
        wanted = labels[predicted]
        losses = cross_entropy(logits, wanted, reduction="none")
        found.append((wanted, losses, logits.argmax(-1) == wanted, inputs["input_ids"][predicted]))

        following = model.cls.seq_relationship(pooled).float()
        next_sentence[batch] = (following[:, 0] - following[:, 1]).cpu().numpy()

    targets, losses, correct, shown = (torch.cat(parts).cpu().numpy() for parts in zip(*found, strict=True))
    return LanguageOutputs(targets, losses, correct, next_sentence, shown)


# ---- masked language model


def probe_masked_lm(text: HeldOutText, subject: Subject, outputs: Callable) -> dict:
    """Loss and accuracy on the text, by frequency, and with disturbed context.

    Args:
        outputs: examples → what `language_outputs` returns.

    Returns:
        loss (nats a token) and its standard error (tokens taken as independent), nats_per_character, accuracy,
        masked_loss (where the input shows [MASK], and not the token itself or a random one), unigram_loss (by the
        text's own frequencies, one added to each), majority_accuracy; shuffled_loss and shuffled_gap (word order
        lost); replaced_loss and replaced_gap (context lost); bands, a row a band of frequency.
    """
    disturber = Disturber(subject.tokenizer, text.counts, subject.seed)
    targets, losses, correct, _, shown = outputs(text.examples)
    masked = shown == subject.tokenizer.mask_token_id
    shuffled = outputs([disturber.shuffled(example) for example in text.examples]).losses
    replaced = outputs([disturber.replaced(example) for example in text.examples]).losses

    smoothed = text.counts + 1
    unigram = -np.log(smoothed[targets] / smoothed.sum())
    per_million = text.counts[targets] / max(1, text.counts.sum()) * 1e6

    return {
        "predicted_tokens": len(targets),
        "loss": float(losses.mean()),
        "loss_standard_error": float(losses.std(ddof=1) / np.sqrt(len(losses))),
        "nats_per_character": float(losses.mean() / (text.characters_per_token or np.nan)),
        "accuracy": float(correct.mean()),
        "masked_loss": float(losses[masked].mean()),
        "unigram_loss": float(unigram.mean()),
        "majority_accuracy": float((targets == text.counts.argmax()).mean()),
        "shuffled_loss": float(shuffled.mean()),
        "shuffled_gap": float(shuffled.mean() - losses.mean()),
        "replaced_loss": float(replaced.mean()),
        "replaced_gap": float(replaced.mean() - losses.mean()),
        "bands": frequency_bands(per_million, losses, correct, unigram),
    }


def frequency_bands(per_million: np.ndarray, losses: np.ndarray, correct: np.ndarray, unigram: np.ndarray) -> list:
    """A row for each band of `BANDS`: its share of the predicted tokens, loss, accuracy, and unigram loss."""
    metrics = {"loss": losses, "accuracy": correct, "unigram_loss": unigram}
    rows = []
    above = np.inf
    for lowest in BANDS:
        inside = (per_million >= lowest) & (per_million < above)
        above = lowest
        if inside.any():
            means = {name: float(values[inside].mean()) for name, values in metrics.items()}
            rows.append({"at_least_per_million": lowest, "share": float(inside.mean()), **means})
    return rows


# ---- next sentence


def probe_next_sentence(text: HeldOutText, subject: Subject, outputs: Callable) -> dict:
    """Accuracy of next-sentence prediction, as it is and with parts of the evidence taken away.

    Returns:
        pairs, majority, accuracy, standard_error; shuffled_b_accuracy (the words of B in random order);
        lengths_accuracy (every word replaced by a random one: lengths are left); lengths_classifier_accuracy (boosted
        trees on the lengths of A and B, four-fold: how far lengths tell the label in these data).
    """
    labels = np.array([example.next_sentence_label for example in text.examples])
    disturber = Disturber(subject.tokenizer, text.counts, subject.seed + 1)

    def accuracy(examples: list[MaskedExample]) -> float:
        return float(((outputs(examples).next_sentence < 0) == labels).mean())

    plain = accuracy(text.examples)
    lengths = [[(example.token_type_ids == segment).sum() for segment in (0, 1)] for example in text.examples]
    trees = HistGradientBoostingClassifier(max_iter=50, random_state=subject.seed)
    return {
        "pairs": len(labels),
        "majority": float(max(labels.mean(), 1 - labels.mean())),
        "accuracy": plain,
        "standard_error": float(np.sqrt(plain * (1 - plain) / len(labels))),
        "shuffled_b_accuracy": accuracy([disturber.shuffled(example, (1,)) for example in text.examples]),
        "lengths_accuracy": accuracy([disturber.replaced(example, False) for example in text.examples]),
        "lengths_classifier_accuracy": float(cross_val_score(trees, np.array(lengths), labels, cv=4).mean()),
    }
