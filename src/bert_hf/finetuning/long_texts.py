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
_SAID_FROM = 0.01  # share of cut rows or tokens above which it is said


class CutTexts(NamedTuple):
    """How much of the texts the inputs lack.

    Attributes:
        rows, cut_rows: number of all rows, and of those that lack tokens.
        tokens, cut_tokens: number of tokens without special tokens, and of those that are in no input.
        features: number of inputs.
        length: tokens of the longest input allowed, special tokens included.
        needed: tokens of an input that holds 99 of 100 rows whole.
    """

    rows: int
    cut_rows: int
    tokens: int
    cut_tokens: int
    features: int
    length: int
    needed: int

    def line(self, longest: int = 512) -> str | None:
        """How much is cut, and the remedy; None where it is 1 % or less of rows and tokens, and no row has windows.

        In windows only the shorter text of a pair is cut, which is in all of them.

        Args:
            longest: number of positions of the model.
        """
        rows, tokens = self.cut_rows / max(1, self.rows), self.cut_tokens / max(1, self.tokens)
        said = rows > _SAID_FROM or tokens > _SAID_FROM
        longer = f"--max_seq_length {min(longest, -(-self.needed // 64) * 64)}" if self.length < longest else None

        if self.features > self.rows:
            line = f"{self.rows:,} rows are read in {self.features:,} windows of up to {self.length} tokens"
            if not said:
                return line
            line += f"; of {rows:.0%} of them the shorter text is cut: {tokens:.0%} of all tokens"
            return line if longer is None else f"{line}; {longer} keeps more"

        if not said:
            return None
        remedies = [remedy for remedy in (longer, "--long_texts windows") if remedy is not None]
        cut = f"{rows:.0%} of the rows are longer than {self.length} tokens and are cut: {tokens:.0%} of all tokens"
        return f"{cut}; {', or '.join(remedies)} keeps more"


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
    template = _Template(tokenizer, rows.pairs is not None)
    available = max_seq_length - template.special
    if available < 2:
        what = f"{max_seq_length} tokens leave {max(0, available)} for the text"
        raise InputError(what, where="--max_seq_length", remedy=f"give {template.special + 2} or more")

    firsts = _token_ids(rows.texts, tokenizer)
    seconds = [[]] * len(rows) if rows.pairs is None else _token_ids(rows.pairs, tokenizer)
    features: dict[str, list] = {name: [] for name in (*template.inputs, "length")}
    row_of_feature: list[int] = []
    left = np.zeros(len(rows), np.int64)  # tokens of a row that are in no input
    for row, (first, second) in enumerate(zip(firsts, seconds, strict=True)):
        parts, left[row] = _parts(first, second, available, long_texts)
        for part in parts:
            for name, values in template.filled(*part).items():
                features[name].append(values)
        row_of_feature += [row] * len(parts)

    features["length"] = [len(ids) for ids in features["input_ids"]]
    if labels is not None:
        features["labels"] = [labels[row] for row in row_of_feature]
    lengths = np.array([len(first) + len(second) for first, second in zip(firsts, seconds, strict=True)])
    needed = int(np.quantile(lengths, 0.99, method="higher")) + template.special if len(rows) else 0
    cut = CutTexts(
        rows=len(rows),
        cut_rows=int((left > 0).sum()),
        tokens=int(lengths.sum()),
        cut_tokens=int(left.sum()),
        features=len(row_of_feature),
        length=max_seq_length,
        needed=needed,
    )
    return EncodedTexts(datasets.Dataset.from_dict(features), np.array(row_of_feature, np.int64), cut)


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


# ---- special tokens


class _Template:
    """The special tokens of a tokenizer and their places: [CLS] first [SEP] second [SEP]."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, pair: bool):
        sample = tokenizer("a", "a" if pair else None)
        self.inputs = tuple(name for name in tokenizer.model_input_names if name in sample)
        types = sample.get("token_type_ids", [0] * len(sample["input_ids"]))
        self.tokens = list(zip(sample.sequence_ids(), sample["input_ids"], types, strict=True))
        self.special = sum(sequence is None for sequence, _, _ in self.tokens)

    def filled(self, first: list[int], second: list[int]) -> dict[str, list[int]]:
        """The inputs of the model for two lists of token ids, the second empty for single texts."""
        ids: list[int] = []
        types: list[int] = []
        written: set[int] = set()
        for sequence, token, kind in self.tokens:
            if sequence is None:
                added = [token]
            elif sequence in written:  # the sample has several tokens here
                continue
            else:
                written.add(sequence)
                added = (first, second)[sequence]
            ids += added
            types += [kind] * len(added)

        made = {"input_ids": ids, "token_type_ids": types, "attention_mask": [1] * len(ids)}
        return {name: made[name] for name in self.inputs}


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
