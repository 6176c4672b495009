"""Reads the configuration of a BERT: from a checkpoint or a model JSON, with the line of a wrong value."""

import json
from typing import Any

from transformers import BertConfig

from bert_hf.config.files import read_input_text
from bert_hf.config.package_files import find_config
from bert_hf.errors import InputError, did_you_mean
from bert_hf.models.loading import config_errors, find_checkpoint, foreign_architecture, read_safe_json

_SIZES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings", "type_vocab_size",
)  # fmt: skip


def config_from_json(path: str | None, **changes: Any) -> BertConfig:
    """Return the configuration in a model JSON; `changes` replace entries of the file."""
    if path is None:
        raise InputError("missing option", where="--config_name", remedy="give e.g. configs/model/base.json")
    file = find_config(path, "model", suffix=".json")
    text = read_input_text(file, "give a BERT's configuration, e.g. configs/model/mini.json")
    values = read_safe_json(file)
    if problem := _problem(values):
        name, what = problem
        before, key, _ = text.rpartition(json.dumps(name))
        raise InputError(what, where=file, line=before.count("\n") + 1 if key else None, remedy="fix the file")
    with config_errors(file, "fix the file"):
        return BertConfig(**{**values, **changes})


def config_of_checkpoint(where: str, **changes: Any) -> BertConfig:
    """Return the configuration of a folder or Hub id; `changes` replace entries of it."""
    with config_errors(where, "correct config.json, or give a complete BERT checkpoint"):
        return BertConfig.from_pretrained(find_checkpoint(where, weights=False), **changes)


def _problem(values: dict) -> tuple[str, str] | None:
    """Return (key, problem) for a value that transformers accepts and BERT does not; transformers checks types."""
    usual = BertConfig().to_dict()
    if problem := foreign_architecture(values):
        return problem

    # A misspelled key: an unknown one that resembles a key that is missing
    for name in values:
        if name not in usual and (near := did_you_mean(name, set(_SIZES) - values.keys())):
            return name, f"unknown key {name!r}; {near.strip()}"

    numbers = {name: values.get(name, usual[name]) for name in _SIZES}
    for name, value in numbers.items():
        if not (isinstance(value, int) and value > 0):
            return name, f"{name} is {value!r}, not an integer above 0"
    if numbers["hidden_size"] % numbers["num_attention_heads"]:
        heads = numbers["num_attention_heads"]
        return "hidden_size", f"hidden_size {numbers['hidden_size']} is not a multiple of num_attention_heads {heads}"
    return None
