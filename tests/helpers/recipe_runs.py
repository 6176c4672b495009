"""Recipes called in this process, on a tiny model."""

import contextlib
import json
from pathlib import Path

import pytest
from transformers import TrainerCallback

from bert_hf.config import package_files

ROOT = Path(__file__).parents[2]
recipe = package_files.recipe_main

TINY = {
    "model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 64, "vocab_size": 30522,
}  # fmt: skip


def intercept(patch: pytest.MonkeyPatch, trainer_class: type, action) -> None:
    """Calls `action` with each trainer that is made."""
    initialize = trainer_class.__init__

    def made(self, *args, **kwargs):
        initialize(self, *args, **kwargs)
        action(self)

    patch.setattr(trainer_class, "__init__", made)


class _Cut(TrainerCallback):
    def __init__(self, step: int):
        self.step = step

    def on_save(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KeyboardInterrupt


@contextlib.contextmanager
def cut_off(trainer_class: type, step: int = 4):
    """Context manager: a run ends after the checkpoint of a step, as by a kill: without anything that would follow."""
    with pytest.MonkeyPatch.context() as patch:
        intercept(patch, trainer_class, lambda trainer: trainer.add_callback(_Cut(step)))
        with pytest.raises(KeyboardInterrupt):
            yield


def write_inputs(folder: Path, documents: int = 60) -> Path:
    """Writes text.txt (documents of six sentences) and tiny.json (the model) into `folder`, which is returned."""
    texts = [
        "\n".join(f"Topic {d % 7} sentence {s} says that thing{d} follows thing{s}." for s in range(6))
        for d in range(documents)
    ]
    (folder / "text.txt").write_text("\n\n".join(texts))
    (folder / "tiny.json").write_text(json.dumps(TINY))
    return folder
