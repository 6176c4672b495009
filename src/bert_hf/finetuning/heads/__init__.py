"""Heads: one module for each kind of output layer. A new kind is a module here and an entry in `HEADS`."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_hf.errors import InputError

if TYPE_CHECKING:
    from bert_hf.finetuning.heads.head import Head

# Classes by the name of the head, which is also its module: a command imports only the heads that it uses
HEADS = {
    "classification": "ClassificationHead",
    "token_classification": "TokenClassificationHead",
    "question_answering": "QuestionAnsweringHead",
    "multiple_choice": "MultipleChoiceHead",
    "fill_mask": "FillMaskHead",
    "frozen_features": "FrozenFeaturesHead",
}


def head_named(name: str) -> "type[Head]":
    """Return the class of the head with this name, a key of `HEADS`."""
    return getattr(importlib.import_module(f"{__name__}.{name}"), HEADS[name])


def head_of(config: Mapping[str, Any], where: str | Path) -> "type[Head]":
    """Return the class of the head of a checkpoint: by the name in its config.json, else by its `architectures`.

    `where` names the checkpoint in an error.
    """
    recorded = (config.get("trained_on") or {}).get("head")
    if recorded in HEADS:
        return head_named(recorded)

    # A checkpoint of stock transformers
    heads = [head_named(name) for name in HEADS]
    for head in heads:
        if head.suits(config):
            return head
    classes = [f"Bert{ending}" for head in heads if head.stock for ending in head.architectures]
    architecture = (config.get("architectures") or ["BertModel"])[0]
    remedy = f"give one of {', '.join(classes)}"
    raise InputError(f"a model of class {architecture} predicts nothing", where=where, remedy=remedy)
