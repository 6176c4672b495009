"""Measures the pre-training heads on held-out text: masked words, next sentences, and grammar (BLiMP)."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import BertForPreTraining, PreTrainedTokenizerBase

from bert_hf.config.arguments import CorpusArguments
from bert_hf.data.corpus.requested_corpus import load_or_prepare_corpus
from bert_hf.data.examples.collator import DataCollatorForPreTraining, pad_inputs, pad_rows
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.data.examples.samplers import Phase
from bert_hf.data.text.input_files import expand
from bert_hf.data.text.tables import read_rows
from bert_hf.data.text.tokenization import id_count, starts_word
from bert_hf.models.functional import IGNORE_INDEX
from bert_hf.models.inference import run_by_length

_TOKENS_PER_BATCH = 8192  # padding included
_TIE = 1e-4  # nats: sums of fp32 logits in other batches differ by less


# ---- held-out text


class Example(NamedTuple):
    """One masked example; arrays of length L. `labels`: the tokens to predict, −100 elsewhere."""

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    labels: np.ndarray
    next_sentence_label: int = 0


@dataclass
class HeldOutText:
    """Masked examples, the frequencies (V,) of the text's tokens, and whether the examples are sentence pairs."""

    examples: list[Example]
    counts: np.ndarray
    pairs: bool


def read_held_out(files: list[str], tokenizer: PreTrainedTokenizerBase, length: int, most: int) -> HeldOutText:
    """Return the pairs and masks on which `pretrain.py` evaluates the same text with its default options."""
    corpus = load_or_prepare_corpus(CorpusArguments(), tokenizer, files)
    window = corpus.window(corpus.windows()[0])
    pairs = len(window) > 1 and bool((window.sentences > 1).any())
    examples = PreTrainingExamples(corpus, (Phase(length, None),), nsp=pairs, seed=0, fixed=True, limit=most)

    collator = DataCollatorForPreTraining(tokenizer, nsp=pairs)
    masked = [
        Example(**collator.example(feature), next_sentence_label=feature.get("next_sentence_label", 0))
        for feature in map(examples.__getitem__, range(len(examples)))
    ]
    return HeldOutText(masked, corpus.unigram_counts(id_count(tokenizer)), pairs)


class Outputs(NamedTuple):
    """The outputs of one pass over N examples with M predicted tokens, in the order of the examples."""

    targets: np.ndarray  # (M,) the tokens to predict
    losses: np.ndarray  # (M,) nats
    correct: np.ndarray  # (M,) bool
    next_sentence: np.ndarray  # (N,) logit of "B follows A" minus that of "B is from another document"


def outputs_of(model: BertForPreTraining, examples: list[Example], tokenizer: PreTrainedTokenizerBase) -> Outputs:
    """Return the outputs of one pass over the examples."""
    pad: Any = tokenizer.pad_token_id

    def compute(batch: list[int]) -> Iterable[tuple[torch.Tensor, ...]]:
        rows = [examples[row] for row in batch]
        labels = pad_rows([row.labels for row in rows], IGNORE_INDEX).to(model.device)
        segments = [row.token_type_ids for row in rows]
        states, pooled = model.bert(**pad_inputs([row.input_ids for row in rows], pad, model.device, segments))[:2]

        predicted = labels != IGNORE_INDEX
        targets = labels[predicted]
        logits = model.cls.predictions(states[predicted]).float()  # (M, V): the head only on predicted positions
        losses = cross_entropy(logits, targets, reduction="none")
        scores = model.cls.seq_relationship(pooled).float()

        counts = predicted.sum(1).tolist()
        by_token = (x.split(counts) for x in (targets, losses, logits.argmax(-1) == targets))
        return zip(*by_token, (scores[:, 0] - scores[:, 1]).split(1), strict=True)

    outputs = run_by_length([len(example.input_ids) for example in examples], compute, tokens=_TOKENS_PER_BATCH)
    return Outputs(*(torch.cat(parts).cpu().numpy() for parts in zip(*outputs, strict=True)))


# ---- masked language model


def masked_lm(text: HeldOutText, outputs: Outputs) -> dict[str, float]:
    """Return the loss (nats), the accuracy and the loss of the text's own frequencies, one added to each."""
    smoothed = text.counts + 1
    unigram = -np.log(smoothed[outputs.targets] / smoothed.sum())
    return {
        "loss": float(outputs.losses.mean()),
        "accuracy": float(outputs.correct.mean()),
        "unigram_loss": float(unigram.mean()),
    }


# ---- next sentence


def next_sentence(text: HeldOutText, outputs: Outputs) -> dict:
    """Return the accuracy of next-sentence prediction, its standard error, and the share of the larger class."""
    labels = np.array([example.next_sentence_label for example in text.examples])
    majority = float(max(labels.mean(), 1 - labels.mean()))
    return {"pairs": len(labels), "majority": majority, **_accuracy((outputs.next_sentence < 0) == labels)}


def _accuracy(right: np.ndarray) -> dict[str, float]:
    share = float(right.mean())
    return {"accuracy": share, "standard_error": float(np.sqrt(share * (1 - share) / len(right)))}


# ---- minimal pairs


MinimalPair = tuple[str, str]  # two sentences, of which the first is grammatical


def read_minimal_pairs(files: list[str], most: int) -> list[MinimalPair]:
    """Return at most `most` pairs of each paradigm, a random sample, from JSON lines as BLiMP ships them.

    Keys: `sentence_good`, `sentence_bad`; `UID` names the paradigm.
    """
    by_paradigm: dict[str, list[MinimalPair]] = defaultdict(list)
    for path in expand(files):
        for row in read_rows(path):
            sentences = [row.values.get("sentence_good"), row.values.get("sentence_bad")]
            if not all(isinstance(sentence, str) and sentence.strip() for sentence in sentences):
                raise row.error("not a minimal pair", "give sentence_good and sentence_bad, both text")

            paradigm = str(row.values.get("UID") or Path(path).name)
            good, bad = map(str, sentences)
            by_paradigm[paradigm].append((good, bad))

    rng = np.random.default_rng(0)
    chosen = []
    for paradigm in sorted(by_paradigm):
        pairs = by_paradigm[paradigm]
        chosen += [pairs[number] for number in np.sort(rng.permutation(len(pairs))[:most])]
    return chosen


def mask_each_position(ids: list[int], continues: np.ndarray, mask: int) -> Iterator[Example]:
    """Yield an example for each token of a sentence, in which it is predicted.

    The later pieces of the same word are masked, too (PLL-word-l2r, Kauf & Ivanova 2023): else the pieces of a word
    give each other away.

        [CLS] a ##b c [SEP]   →   [CLS] M M c [SEP] for a · [CLS] a M c [SEP] for ##b · [CLS] a ##b M [SEP] for c

    Args:
        ids: with [CLS] first and [SEP] last, which are not scored.
        continues: (V,) bool, which tokens continue the word of the token before.
    """
    for position in range(1, len(ids) - 1):
        end = position + 1
        while end < len(ids) - 1 and continues[ids[end]]:
            end += 1
        row, labels = np.array(ids), np.full(len(ids), IGNORE_INDEX)
        row[position:end] = mask
        labels[position] = ids[position]
        yield Example(row, np.zeros_like(row), labels)


def pseudo_log_likelihoods(
    model: BertForPreTraining, sentences: list[str], tokenizer: PreTrainedTokenizerBase
) -> np.ndarray:
    """Return (N,) the pseudo-log-likelihood of each sentence in nats (Salazar et al. 2020)."""
    continues = ~starts_word(tokenizer)
    continues[tokenizer.all_special_ids] = False
    mask: Any = tokenizer.mask_token_id
    encoded: Any = tokenizer(sentences, truncation=True, max_length=model.config.max_position_embeddings)["input_ids"]
    examples = [list(mask_each_position(ids, continues, mask)) for ids in encoded]

    losses = outputs_of(model, [example for of_sentence in examples for example in of_sentence], tokenizer).losses
    owners = np.repeat(np.arange(len(sentences)), [len(of_sentence) for of_sentence in examples])
    return -np.bincount(owners, losses, minlength=len(sentences))


def minimal_pairs(
    pairs: list[MinimalPair], model: BertForPreTraining, tokenizer: PreTrainedTokenizerBase
) -> dict[str, Any]:
    """Return the share of pairs where the grammatical sentence scores higher (a tie counts as wrong)."""
    scores = pseudo_log_likelihoods(model, [text for pair in pairs for text in pair], tokenizer)
    return {"pairs": len(pairs), **_accuracy(scores[0::2] - scores[1::2] > _TIE)}
