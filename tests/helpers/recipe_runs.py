"""Recipes called in this process, on a tiny model."""

import importlib.util
import json
from pathlib import Path

from transformers import TrainerCallback

ROOT = Path(__file__).parents[2]


TINY = {
    "model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 64, "vocab_size": 30522,
}  # fmt: skip


def recipe(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"recipes/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


class Cut(TrainerCallback):
    """Ends the process' training as a kill would: without anything after the checkpoint."""

    def on_save(self, args, state, control, **kwargs):
        if state.global_step == 4:
            raise KeyboardInterrupt


def write_inputs(folder: Path, documents: int = 60) -> Path:
    """Writes text.txt (documents of six sentences) and tiny.json (the model) into `folder`, which is returned."""
    texts = [
        "\n".join(f"Topic {d % 7} sentence {s} says that thing{d} follows thing{s}." for s in range(6))
        for d in range(documents)
    ]
    (folder / "text.txt").write_text("\n\n".join(texts))
    (folder / "tiny.json").write_text(json.dumps(TINY))
    return folder
