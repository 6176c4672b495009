"""Makes inputs of a model from texts of any length: cut at the end, cut in the middle, or read in windows.

head         [CLS] w1 w2 w3 w4 w5 w6 [SEP]                    the first tokens
head_tail    [CLS] w1 w2 w9 w10 w11 w12 [SEP]                 the first and the last tokens
windows      [CLS] w1 … w6 [SEP], [CLS] w4 … w9 [SEP], …      overlapping parts, several inputs per row
"""

from collections.abc import Sequence
from typing import NamedTuple

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from bert_hf.console import progress
from bert_hf.data.text.tokenization import InputTemplate, ModelInput
from bert_hf.finetuning.rows.labelled_texts import LabelledTexts

# Sun et al. 2019, "How to Fine-Tune BERT for Text Classification?", section 5.3.1: the first 128 and the last 382 of
# 510 tokens gave the lowest error on IMDb and Sogou
HEAD_SHARE = 128 / 510
OVERLAP = 0.25  # least share of a window that is also in the next one: few sentences are seen only in two halves


class EncodedTexts(NamedTuple):
    """Texts, or pairs of texts, as inputs of the network: one per row, or several of a text read in windows."""

    features: datasets.Dataset  # `input_ids` and `token_type_ids`, not padded; `labels`, if any; `length` (tokens)
    row_of_feature: np.ndarray  # (features,) the row of each input, in ascending order
    note: str  # how many rows are too long for one input, and what became of them; "" where none is


def encode_texts(
    rows: LabelledTexts,
    labels: Sequence[int] | Sequence[float] | np.ndarray | None,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    long_texts: str = "head",
) -> EncodedTexts:
    """Return texts, or pairs of texts, as inputs of at most `max_seq_length` tokens.

    In a pair that is too long, the longer text is cut until both are equal, then both are cut ("longest first"); of
    "windows" each has the shorter text, cut to half a window. `labels` are one per row (a class id, a number, or (C,)
    0 and 1), and each window has its row's; None: not known. `long_texts` is one of the three ways above.
    """
    template = InputTemplate(tokenizer)
    firsts = token_ids(rows.texts, tokenizer)
    seconds = [[]] * len(rows) if rows.pairs is None else token_ids(rows.pairs, tokenizer)
    inputs: list[ModelInput] = []
    row_of_feature: list[int] = []
    available = max_seq_length - tokenizer.num_special_tokens_to_add(pair=rows.pairs is not None)
    too_long = 0
    for row, (first, second) in enumerate(zip(firsts, seconds, strict=True)):
        too_long += len(first) + len(second) > available
        parts = cut_tokens(first, second, available, long_texts)
        inputs += [template.join(one, None if rows.pairs is None else other) for one, other in parts]
        row_of_feature += [row] * len(parts)

    features: dict[str, list] = {
        "input_ids": [each.input_ids for each in inputs],
        "token_type_ids": [each.token_type_ids for each in inputs],
        "length": [len(each.input_ids) for each in inputs],
    }
    if labels is not None:
        features["labels"] = [labels[row] for row in row_of_feature]

    note = ""
    if too_long:
        how = "read in several windows" if long_texts == "windows" else "cut (--long_texts windows reads all of them)"
        note = f"{too_long:,} of {len(rows):,} rows have more than {max_seq_length} tokens and are {how}"
    return EncodedTexts(datasets.Dataset.from_dict(features), np.array(row_of_feature, np.int64), note)


def token_ids(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Return the token ids of each text, without special tokens; show the progress."""
    ids = []
    for begin in progress(range(0, len(texts), 1000), "tokenizing", "thousand texts"):
        batch = texts[begin : begin + 1000]
        ids += tokenizer(batch, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    return ids


def average_windows(logits: np.ndarray, row_of_feature: np.ndarray) -> np.ndarray:
    """Return (rows, classes) the mean of the logits (features, classes) of each row's inputs, in float64."""
    counts = np.bincount(row_of_feature)
    sums = np.zeros((len(counts), logits.shape[1]))
    np.add.at(sums, row_of_feature, logits.astype(np.float64))
    return sums / counts[:, None]


def cut_tokens(
    first: list[int], second: list[int], available: int, long_texts: str
) -> list[tuple[list[int], list[int]]]:
    """Return the tokens of both texts in each input of a row, at most `available`; "windows" gives several inputs."""
    if len(first) + len(second) <= available:
        return [(first, second)]
    if long_texts == "windows":
        return _windows(first, second, available)

    first_count, second_count = longest_first(len(first), len(second), available)
    return [(_shorten(first, first_count, long_texts), _shorten(second, second_count, long_texts))]


def longest_first(first: int, second: int, available: int) -> tuple[int, int]:
    """Return how many tokens to keep of two texts with more than `available`: tokenizers' rule `longest_first`.

    (3, 9) in 8 → (3, 5); (6, 9) in 8 → (4, 4); (6, 9) in 9 → (4, 5), the longer one gets the odd token.
    """
    shorter = min(first, second, available // 2)
    return (available - shorter, shorter) if first > second else (shorter, available - shorter)


def _shorten(tokens: list[int], count: int, long_texts: str) -> list[int]:
    """Return `count` tokens: the first ones or, with "head_tail", a quarter from the start, the rest from the end."""
    if len(tokens) <= count:
        return tokens
    head = round(count * HEAD_SHARE) if long_texts == "head_tail" else count
    return tokens[:head] + tokens[len(tokens) - (count - head) :]  # [-0:] would be all


def _windows(first: list[int], second: list[int], available: int) -> list[tuple[list[int], list[int]]]:
    """Return the first and second text of each input: a window of the longer, and the shorter cut to half an input.

    Each window shares a quarter (rounded down) or more with the next one; all are equally long and evenly spaced:

        12 tokens in windows of 8:  0–8, 4–12
        15 tokens in windows of 8:  0–8, 3–11, 7–15
    """
    longer, shorter = (first, second) if len(first) >= len(second) else (second, first)
    short_tokens = shorter[: available // 2]
    size = available - len(short_tokens)  # of a window
    step = size - int(size * OVERLAP)
    last = len(longer) - size  # where the last window begins
    count = -(-last // step) + 1  # the quotient rounded up, so that no step is longer
    begins = [last * number // max(1, count - 1) for number in range(count)]
    windows = [longer[begin : begin + size] for begin in begins]
    if longer is first:
        return [(window, short_tokens) for window in windows]
    return [(short_tokens, window) for window in windows]
