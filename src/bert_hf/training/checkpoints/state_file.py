"""Saves and loads nested state (dicts, lists, numbers, tensors) in one safetensors file, without a pickle."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from bert_hf.training.checkpoints.checkpoint_files import DamagedCheckpoint


def save_state(path: Path, state: Any) -> None:
    """Writes nested dicts, lists, tuples, numbers, strings and tensors to `path` (safetensors + JSON in its header).

    Raises:
        TypeError: the state holds a value of another type; nothing is ever pickled.
    """
    tensors: dict[str, torch.Tensor] = {}
    skeleton = json.dumps(_strip(state, tensors))
    save_file(tensors or {"empty": torch.zeros(0)}, path, metadata={"state": skeleton})


def load_state(path: Path) -> Any:
    """Reads what `save_state` wrote.

    Raises:
        DamagedCheckpoint: the file is missing or has another format.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            return _restore(json.loads(file.metadata()["state"]), tensors)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DamagedCheckpoint(f"{path.name}: {error}") from None


def _strip(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """The JSON skeleton of a state; its tensors move to `tensors`."""
    if isinstance(value, torch.Tensor | np.ndarray):
        name = str(len(tensors))
        plain = value.copy() if isinstance(value, np.ndarray) else value  # torch takes no negative strides
        tensors[name] = torch.as_tensor(plain).detach().cpu().contiguous().clone()
        return {"kind": "tensor" if isinstance(value, torch.Tensor) else "array", "of": name}

    if isinstance(value, dict):
        return {"kind": "dict", "of": [[_strip(k, tensors), _strip(v, tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {"kind": kind, "of": [_strip(item, tensors) for item in value]}

    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a checkpoint holds no {type(value).__name__}")


def _restore(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """The state whose skeleton `_strip` made."""
    if not isinstance(value, dict):
        return value

    kind = value["kind"]
    content = value["of"]
    if kind in ("tensor", "array"):
        return tensors[content] if kind == "tensor" else tensors[content].numpy()
    if kind == "dict":
        return {_restore(k, tensors): _restore(v, tensors) for k, v in content}
    items = [_restore(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items
