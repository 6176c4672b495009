"""Compares rows with the training rows, without labels: by their length, and by how many words are unknown."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from bert_hf.data.text.tokenization import id_count

_LEAST_EFFECT = 0.5  # difference of two means, in standard deviations of the training rows, that is reported
_LEAST_ERRORS = 4.0  # and in standard errors of the mean


def typical_values(features: Any, tokenizer: PreTrainedTokenizerBase) -> dict[str, tuple[float, float]]:
    """Return the mean and standard deviation of each measure over features."""
    measured = _measures(features, tokenizer)
    return {name: (round(float(own.mean()), 4), round(float(own.std()), 4)) for name, own in measured.items()}


def drift_line(features: Any, tokenizer: PreTrainedTokenizerBase, typical: Mapping[str, tuple[float, float]]) -> str:
    """Return a line on the measures whose mean differs from the training rows'; "" if there is none.

    Example: `! the rows differ from the training rows: tokens 96.2 (training: 21.4)`.
    """
    differences = []
    for name, values in _measures(features, tokenizer).items():
        mean, deviation = typical[name]
        least = deviation * max(_LEAST_EFFECT, _LEAST_ERRORS / len(values) ** 0.5)
        if abs(values.mean() - mean) > least + 1e-3:  # more than recorded values are rounded
            differences.append(f"{name} {values.mean():.3g} (training: {mean:.3g})")
    return f"! the rows differ from the training rows: {', '.join(differences)}" if differences else ""


def _measures(features: Any, tokenizer: PreTrainedTokenizerBase) -> dict[str, np.ndarray]:
    """Return (F,) the tokens of each feature, and the share of them that are not whole words of the vocabulary."""
    parts = np.zeros(id_count(tokenizer), bool)
    for token, number in tokenizer.get_vocab().items():
        parts[number] = token.startswith("##") or token == tokenizer.unk_token
    unknown = [parts[ids].mean() for ids in features["input_ids"]]
    return {"tokens": np.array(features["length"], np.float64), "share of unknown words": np.array(unknown)}
