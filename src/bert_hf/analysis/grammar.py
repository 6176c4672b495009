"""Measures grammar by minimal pairs (BLiMP): how often the grammatical one of two sentences is the likelier one."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import BertForPreTraining, PreTrainedTokenizerBase

from bert_hf.data.examples.collator import pad_inputs
from bert_hf.data.text.input_files import expand
from bert_hf.data.text.tables import read_rows
from bert_hf.data.text.tokenization import starts_word
from bert_hf.models.inference import run_by_length

_TOKENS_PER_BATCH = 8192  # padding included
_TIE = 1e-4  # nats: sums of fp32 logits in other batches differ by less

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


def mask_each_position(ids: list[int], continues: np.ndarray, mask: int) -> Iterator[tuple[list[int], int]]:
    """Yield for each token of a sentence the masked ids from which it is predicted, and its position.

    The later pieces of the same word are masked, too (PLL-word-l2r, Kauf & Ivanova 2023): else the pieces of a word
    give each other away.

        [CLS] a ##b c [SEP]   →   [CLS] M M c [SEP], 1 · [CLS] a M c [SEP], 2 · [CLS] a ##b M [SEP], 3

    Args:
        ids: with [CLS] first and [SEP] last, which are not scored.
        continues: (V,) bool, which tokens continue the word of the token before.
    """
    for position in range(1, len(ids) - 1):
        end = position + 1
        while end < len(ids) - 1 and continues[ids[end]]:
            end += 1
        yield [*ids[:position], *[mask] * (end - position), *ids[end:]], position


def pseudo_log_likelihoods(
    model: BertForPreTraining, sentences: list[str], tokenizer: PreTrainedTokenizerBase
) -> np.ndarray:
    """Return (N,) the pseudo-log-likelihood of each sentence in nats (Salazar et al. 2020)."""
    continues = ~starts_word(tokenizer)
    continues[tokenizer.all_special_ids] = False
    mask: Any = tokenizer.mask_token_id
    pad: Any = tokenizer.pad_token_id
    encoded: Any = tokenizer(sentences, truncation=True, max_length=model.config.max_position_embeddings)["input_ids"]

    # A copy for each token: its sentence, the masked ids, the position, the token
    copies = [
        (number, masked, position, ids[position])
        for number, ids in enumerate(encoded)
        for masked, position in mask_each_position(ids, continues, mask)
    ]

    def compute(batch: list[int]) -> torch.Tensor:
        _, masked, positions, tokens = zip(*(copies[number] for number in batch), strict=True)
        states = model.bert(**pad_inputs(masked, pad, model.device))[0]
        logits = model.cls.predictions(states[range(len(batch)), positions]).float()  # (B, V)
        return cross_entropy(logits, torch.tensor(tokens, device=model.device), reduction="none")

    losses = run_by_length([len(masked) for _, masked, *_ in copies], compute, tokens=_TOKENS_PER_BATCH)
    losses = torch.stack(losses).cpu().numpy()
    return -np.bincount([number for number, *_ in copies], losses, minlength=len(sentences))


def minimal_pairs(
    pairs: list[MinimalPair], model: BertForPreTraining, tokenizer: PreTrainedTokenizerBase
) -> dict[str, float]:
    """Return the share of pairs where the grammatical sentence scores higher (a tie counts as wrong)."""
    scores = pseudo_log_likelihoods(model, [text for pair in pairs for text in pair], tokenizer)
    return accuracy_with_error(float((scores[0::2] - scores[1::2] > _TIE).mean()), len(pairs))


def accuracy_with_error(accuracy: float, pairs: int) -> dict[str, float]:
    """Return an accuracy with its number of pairs and its standard error."""
    return {"pairs": pairs, "accuracy": accuracy, "standard_error": float(np.sqrt(accuracy * (1 - accuracy) / pairs))}
