"""Tells the special tokens of a vocabulary apart."""

from typing import cast

from transformers import PreTrainedTokenizerBase


def special_id(tokenizer: PreTrainedTokenizerBase, name: str) -> int:
    """The id of a special token: "cls", "sep", "pad", "mask" or "unk"."""
    return cast(int, getattr(tokenizer, f"{name}_token_id"))


def outside_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids of [CLS], [SEP] and [PAD], which are no part of a text."""
    return [special_id(tokenizer, name) for name in ("cls", "sep", "pad")]
