"""Compares rows with the training rows, without labels: by their length, and by how many words are unknown."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from bert_hf.data.text.tokenization import id_count

_LEAST_EFFECT = 0.5  # difference of two means, in standard deviations of the training rows, that is reported
_LEAST_ERRORS = 4.0  # and in standard errors of the mean


def typical_values(features: Any, tokenizer: PreTrainedTokenizerBase) -> dict[str, tuple[float, float]]:
    """Return (mean, standard deviation) of `tokens` and of `share of unknown words` over the training features."""
    measures = _measures(features, tokenizer)
    return {name: (round(float(each.mean()), 4), round(float(each.std()), 4)) for name, each in measures.items()}


def drift_line(features: Any, tokenizer: PreTrainedTokenizerBase, typical: Mapping[str, tuple[float, float]]) -> str:
    """Return a line on the means that differ from the training rows' (`typical_values`); "" if none does.

    Example: `! the rows differ from the training rows: tokens 96.2 (training: 21.4)`.
    """
    differences = []
    for name, values in _measures(features, tokenizer).items():
        mean, deviation = typical[name]
        least = deviation * max(_LEAST_EFFECT, _LEAST_ERRORS / len(values) ** 0.5)  # large, and no chance result
        if abs(values.mean() - mean) > least + 1e-3:  # the typical values are rounded
            differences.append(f"{name} {values.mean():.3g} (training: {mean:.3g})")
    return f"! the rows differ from the training rows: {', '.join(differences)}" if differences else ""


def _measures(features: Any, tokenizer: PreTrainedTokenizerBase) -> dict[str, np.ndarray]:
    """Return by name, (F,) each: the tokens of each feature, and its share of [UNK] and of pieces inside a word."""
    is_unknown = np.zeros(id_count(tokenizer), bool)  # by token id
    for token, number in tokenizer.get_vocab().items():  # of a word in several pieces only parts are known
        is_unknown[number] = token.startswith("##") or token == tokenizer.unk_token
    shares = [is_unknown[ids].mean() for ids in features["input_ids"]]
    return {"tokens": np.array(features["length"], np.float64), "share of unknown words": np.array(shares)}
