"""Compares the pseudo-log-likelihoods of a grammatical and an ungrammatical sentence: is the first one higher?

Salazar et al. 2020, "Masked Language Model Scoring": each token is masked in turn, and its log-probability given all
others is summed. That overrates words of several pieces, whose pieces give each other away. Kauf & Ivanova 2023, "A
Better Way to Do Masked Language Model Scoring", therefore also mask the pieces of the same word that follow
(PLL-word-l2r). That is the default here: small vocabularies split many of BLiMP's words into pieces.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from transformers import BertForPreTraining

from bert_hf.analysis.probe.data import MinimalPair
from bert_hf.analysis.probe.network import Subject, batches_by_length
from bert_hf.data.examples.collator import pad_inputs
from bert_hf.data.text.tokenization import continuing_pieces

TIE = 1e-4  # nats: sums of fp32 logits in other batches differ by less


def mask_each_position(
    ids: list[int], continues: np.ndarray, mask: int, whole_words: bool
) -> list[tuple[np.ndarray, int]]:
    """A copy of a sentence for each of its tokens, with the position that is predicted in it.

        [CLS] a ##b c [SEP]   →   [CLS] M M c [SEP], 1 · [CLS] a M c [SEP], 2 · [CLS] a ##b M [SEP], 3

    Args:
        ids: with [CLS] first and [SEP] last, which are not scored.
        continues: (V,) bool, which tokens continue the word of the token before.
        whole_words: also mask the later pieces of the word (the first copy above; else it is M ##b).
    """
    copies = []
    for position in range(1, len(ids) - 1):
        end = position + 1
        while whole_words and end < len(ids) - 1 and continues[ids[end]]:
            end += 1
        row = np.array(ids)
        row[position:end] = mask
        copies.append((row, position))
    return copies


@torch.no_grad()
def pseudo_log_likelihoods(
    model: BertForPreTraining, sentences: list[str], subject: Subject, whole_words: bool = True
) -> np.ndarray:
    """(N,) pseudo-log-likelihood of each sentence, in nats."""
    tokenizer = subject.tokenizer
    continues = continuing_pieces(tokenizer)
    mask, pad = cast(int, tokenizer.mask_token_id), cast(int, tokenizer.pad_token_id)
    longest = model.config.max_position_embeddings
    copies = [
        (row, position, number, ids[position])
        for number, ids in enumerate(tokenizer(sentences, truncation=True, max_length=longest)["input_ids"])
        for row, position in mask_each_position(ids, continues, mask, whole_words)
    ]

    scores = np.zeros(len(sentences))
    for batch in batches_by_length([len(row) for row, *_ in copies]):
        rows, positions, owners, targets = zip(*(copies[number] for number in batch), strict=True)
        states = model.bert(**pad_inputs(rows, pad, subject.device))[0]

        places = torch.tensor(positions, device=subject.device)
        wanted = torch.tensor(targets, device=subject.device)
        logits = model.cls.predictions(states[torch.arange(len(batch), device=subject.device), places]).float()

        found = logits.log_softmax(-1).gather(1, wanted[:, None])[:, 0]
        np.add.at(scores, list(owners), found.double().cpu().numpy())
    return scores


def probe_grammar(pairs: list[MinimalPair], score: Callable[[list[str]], np.ndarray]) -> dict:
    """Share of the pairs whose good sentence scores higher; a tie counts as wrong.

    Args:
        score: sentences → (N,) scores, higher for the likelier.

    Returns:
        pairs, accuracy and its standard_error, ties, by_phenomenon {name: {pairs, accuracy}} and by_paradigm.
    """
    scores = score([sentence for pair in pairs for sentence in (pair.good, pair.bad)])
    lead = scores[0::2] - scores[1::2]
    right = lead > TIE
    share = float(right.mean())
    return {
        "pairs": len(pairs),
        "accuracy": share,
        "standard_error": float(np.sqrt(share * (1 - share) / len(pairs))),
        "ties": int((np.abs(lead) <= TIE).sum()),
        "by_phenomenon": _shares([pair.phenomenon for pair in pairs], right),
        "by_paradigm": _shares([pair.paradigm for pair in pairs], right),
    }


def _shares(names: list[str], right: np.ndarray) -> dict:
    found = defaultdict(list)
    for name, one in zip(names, right.tolist(), strict=True):
        found[name].append(one)
    return {name: {"pairs": len(found[name]), "accuracy": float(np.mean(found[name]))} for name in sorted(found)}
