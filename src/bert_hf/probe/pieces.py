"""Tells the pieces of a vocabulary apart: special tokens, and pieces that continue a word."""

from typing import cast

import numpy as np
from transformers import PreTrainedTokenizerBase


def special_id(tokenizer: PreTrainedTokenizerBase, name: str) -> int:
    """The id of a special token: "cls", "sep", "pad", "mask" or "unk"."""
    return cast(int, getattr(tokenizer, f"{name}_token_id"))


def outside_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids of [CLS], [SEP] and [PAD], which are no part of a text."""
    return [special_id(tokenizer, name) for name in ("cls", "sep", "pad")]


def continuing_pieces(tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """(V,) bool: which pieces continue the word of the piece before (##…)."""
    vocabulary = tokenizer.get_vocab()
    continues = np.zeros(max(vocabulary.values()) + 1, bool)
    continues[[index for piece, index in vocabulary.items() if piece.startswith("##")]] = True
    return continues
