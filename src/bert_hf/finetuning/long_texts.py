"""Makes inputs of a model from texts of any length: cut at the end, cut in the middle, or read in windows.

head         [CLS] w1 w2 w3 w4 w5 w6 [SEP]                    the first tokens
head_tail    [CLS] w1 w2 w9 w10 w11 w12 [SEP]                 the first and the last tokens
windows      [CLS] w1 … w6 [SEP], [CLS] w5 … w10 [SEP], …     overlapping parts, several inputs of a row
"""

from collections.abc import Sequence
from typing import NamedTuple

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from bert_hf.errors import InputError
from bert_hf.finetuning.labelled_texts import LabelledTexts

# Sun et al. 2019, "How to Fine-Tune BERT for Text Classification?", section 5.3.1: the first 128 and the last 382 of
# 510 tokens gave the lowest error on IMDb and Sogou
HEAD_SHARE = 128 / 510
OVERLAP = 0.25  # share of a window that is also in the next one, so that no sentence is seen only in two halves
_COLUMNS = ("input_ids", "token_type_ids", "attention_mask", "length")
_WARN_ABOVE = 0.01  # share of cut rows or tokens


class CutTexts(NamedTuple):
    """How much of the texts the inputs lack.

    Attributes:
        rows, cut_rows: number of all rows, and of those that lack tokens.
        tokens, cut_tokens: number of tokens without special tokens, and of those that are in no input.
        features: number of inputs.
        length: tokens of the longest input allowed, special tokens included.
    """

    rows: int
    cut_rows: int
    tokens: int
    cut_tokens: int
    features: int
    length: int

    def line(self) -> str | None:
        """How much is cut, and the remedy; None where it is 1 % or less of rows and tokens, and no row has windows.

        In windows only the shorter text of a pair is cut, which is in all of them.
        """
        rows, tokens = self.cut_rows / max(1, self.rows), self.cut_tokens / max(1, self.tokens)
        cut = f"{rows:.0%} of the rows are cut to {self.length} tokens and lose {tokens:.0%} of all tokens; "
        cut = f"{cut}a larger --max_seq_length or --long_texts windows keeps more"
        many = max(rows, tokens) > _WARN_ABOVE
        if self.features == self.rows:
            return cut if many else None

        windows = f"{self.rows:,} rows are read in {self.features:,} windows of up to {self.length} tokens"
        return f"{windows}; {cut}" if many else windows


class EncodedTexts(NamedTuple):
    """Inputs of a model.

    Attributes:
        features: `input_ids` and what else the model takes, not padded; `labels`, if there are any; `length` (tokens).
        row_of_feature: (features,) the row of each input, in ascending order.
        cut: how much of the texts the inputs lack.
    """

    features: datasets.Dataset
    row_of_feature: np.ndarray
    cut: CutTexts


def encode_texts(
    rows: LabelledTexts,
    labels: Sequence[int] | Sequence[float] | np.ndarray | None,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    long_texts: str = "head",
) -> EncodedTexts:
    """Encodes texts, or pairs of texts, as inputs of at most `max_seq_length` tokens.

    Of a pair that is too long, the longer text is cut until both are equal, then both are ("longest first"). In
    windows the shorter text is in every input, cut to half of it; each window has the label of its row.

    Args:
        labels: of each row: numbers of classes, or floats; None: inputs have no labels.
        long_texts: "head", "head_tail" or "windows".

    Raises:
        InputError: too few tokens for a text.
    """
    special = 2 if rows.pairs is None else 3  # [CLS] first [SEP] second [SEP]
    available = max_seq_length - special
    if available < 2:
        what = f"{max_seq_length} tokens leave {max(0, available)} for the text"
        raise InputError(what, where="--max_seq_length", remedy=f"give {special + 2} or more")

    firsts = _token_ids(rows.texts, tokenizer)
    seconds = [[]] * len(rows) if rows.pairs is None else _token_ids(rows.pairs, tokenizer)
    inputs: list[dict] = []
    row_of_feature: list[int] = []
    left = np.zeros(len(rows), np.int64)  # tokens of a row that are in no input
    for row, texts in enumerate(zip(firsts, seconds, strict=True)):
        parts, left[row] = _parts(*texts, available, long_texts)
        inputs += (_with_special_tokens(first, second, rows.pairs is not None, tokenizer) for first, second in parts)
        row_of_feature += [row] * len(parts)

    features = {name: [each[name] for each in inputs] for name in _COLUMNS}
    if labels is not None:
        features["labels"] = [labels[row] for row in row_of_feature]
    cut = CutTexts(
        rows=len(rows),
        cut_rows=int((left > 0).sum()),
        tokens=sum(map(len, firsts)) + sum(map(len, seconds)),
        cut_tokens=int(left.sum()),
        features=len(row_of_feature),
        length=max_seq_length,
    )
    return EncodedTexts(datasets.Dataset.from_dict(features), np.array(row_of_feature, np.int64), cut)


def _with_special_tokens(first: list[int], second: list[int], pair: bool, tokenizer: PreTrainedTokenizerBase) -> dict:
    """[CLS] first [SEP], or [CLS] first [SEP] second [SEP]."""
    head = [tokenizer.cls_token_id, *first, tokenizer.sep_token_id]
    tail = [*second, tokenizer.sep_token_id] if pair else []
    length = len(head) + len(tail)
    return {
        "input_ids": head + tail,
        "token_type_ids": [0] * len(head) + [1] * len(tail),
        "attention_mask": [1] * length,
        "length": length,
    }


def average_windows(logits: np.ndarray, row_of_feature: np.ndarray) -> np.ndarray:
    """The mean logits of the inputs of each row, in float64.

    Args:
        logits: (features, classes). row_of_feature: (features,) numbers of rows, each at least once.

    Returns:
        (rows, classes).
    """
    rows = int(row_of_feature.max()) + 1 if len(row_of_feature) else 0
    sums = np.zeros((rows, *logits.shape[1:]))
    np.add.at(sums, row_of_feature, logits.astype(np.float64))
    counts = np.bincount(row_of_feature, minlength=rows)
    return sums / counts.reshape(-1, *[1] * (logits.ndim - 1))


def _token_ids(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    if not texts:
        return []
    return tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]


# ---- cutting


def _parts(
    first: list[int], second: list[int], available: int, long_texts: str
) -> tuple[list[tuple[list[int], list[int]]], int]:
    """The token ids of each input of a row, and how many of the row's tokens are in none of them."""
    if len(first) + len(second) <= available:
        return [(first, second)], 0
    if long_texts == "windows":
        return _windows(first, second, available)

    cut = _first_and_last if long_texts == "head_tail" else _first
    one, other = longest_first(len(first), len(second), available)
    return [(cut(first, one), cut(second, other))], len(first) + len(second) - available


def longest_first(first: int, second: int, available: int) -> tuple[int, int]:
    """How many tokens of two texts remain where `available` are too few: the rule of tokenizers' `longest_first`.

    (3, 9) in 8 → (3, 5); (6, 9) in 8 → (4, 4); (6, 9) in 9 → (4, 5), the longer one gets the odd token.
    """
    if first + second <= available:
        return first, second
    shorter = min(first, second, available // 2)
    return (available - shorter, shorter) if first > second else (shorter, available - shorter)


def _first(ids: list[int], count: int) -> list[int]:
    return ids[:count]


def _first_and_last(ids: list[int], count: int) -> list[int]:
    """`count` tokens, a quarter of them from the beginning and the others from the end."""
    if len(ids) <= count:
        return ids
    head = round(count * HEAD_SHARE)
    return ids[:head] + ids[len(ids) - (count - head) :]


def _windows(first: list[int], second: list[int], available: int) -> tuple[list[tuple[list[int], list[int]]], int]:
    """Windows of the longer text, each with the shorter one; and how many tokens of the shorter one are left out.

    Each window shares a quarter or more with the next one; all are equally long and evenly spaced:

        12 tokens in windows of 8:  0–8, 4–12
        15 tokens in windows of 8:  0–8, 3–11, 7–15
    """
    longer, shorter = (first, second) if len(first) >= len(second) else (second, first)
    kept = shorter[: available // 2]
    size = available - len(kept)
    step = size - int(size * OVERLAP)
    last = len(longer) - size  # where the last window begins
    count = -(-last // step) + 1
    begins = [last * number // max(1, count - 1) for number in range(count)]
    parts = [(longer[begin : begin + size], kept) for begin in begins]
    if longer is second:
        parts = [(other, one) for one, other in parts]
    return parts, len(shorter) - len(kept)
