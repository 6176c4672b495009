"""A checkpoint as a directory transaction: write, verify, choose.

Everything is written into a temporary folder, recorded in a manifest (sizes and SHA-256) and flushed; one rename makes
it a checkpoint. So a folder named `checkpoint-N` is whole or was damaged later, and the manifest tells which. State is
safetensors and JSON: nothing here writes or reads a pickle.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

MANIFEST = "checkpoint_manifest.json"
TEMPORARY = "saving-"  # prefix of a checkpoint that is being written
_NAME = re.compile(r"checkpoint-(\d+)")


class DamagedCheckpoint(Exception):
    """A checkpoint that is not what its manifest says; the message names the file and the fault."""


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_state(path: Path, state: Any) -> None:
    """Writes nested dicts, lists, tuples, numbers, strings and tensors to `path` (safetensors + JSON in its header).

    Raises:
        TypeError: something else is in there; nothing is ever pickled.
    """
    tensors: dict[str, torch.Tensor] = {}
    skeleton = json.dumps(_strip(state, tensors))
    save_file(tensors or {"empty": torch.zeros(0)}, path, metadata={"state": skeleton})


def load_state(path: Path) -> Any:
    """Reads what `save_state` wrote.

    Raises:
        DamagedCheckpoint: the file is missing or not of this form.
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
    if not isinstance(value, dict):
        return value
    kind, content = value["kind"], value["of"]
    if kind in ("tensor", "array"):
        return tensors[content] if kind == "tensor" else tensors[content].numpy()
    if kind == "dict":
        return {_restore(k, tensors): _restore(v, tensors) for k, v in content}
    items = [_restore(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items


def commit(temporary: Path, final: Path, facts: dict) -> None:
    """Records what `temporary` holds, flushes it, and renames it to `final`. Called by one rank, after all wrote.

    Args:
        facts: what the checkpoint belongs to (step, fingerprints, versions); stands in the manifest.
    """
    files = sorted(path for path in temporary.rglob("*") if path.is_file() and path.name != MANIFEST)
    entries = {
        str(path.relative_to(temporary)): {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in files
    }
    manifest = temporary / MANIFEST
    manifest.write_text(json.dumps({**facts, "files": entries}, indent=2) + "\n")
    for path in [*files, manifest]:
        _flush(path)
    for folder in sorted({path.parent for path in files} | {temporary}):
        _flush(folder)
    if final.exists():
        shutil.rmtree(final)
    os.rename(temporary, final)
    _flush(final.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def verify(folder: Path) -> dict:
    """The manifest of a checkpoint, after every file was compared with it.

    Raises:
        DamagedCheckpoint: no manifest, a file missing, shorter, longer or with another content.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        entries = dict(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpoint(f"{folder.name}/{MANIFEST}: {error}") from None
    for name, entry in entries.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
            raise DamagedCheckpoint(f"{folder.name}/{name}: missing")
        if path.stat().st_size != entry["bytes"]:
            raise DamagedCheckpoint(f"{folder.name}/{name}: {path.stat().st_size} bytes instead of {entry['bytes']}")
        if sha256(path) != entry["sha256"]:
            raise DamagedCheckpoint(f"{folder.name}/{name}: content does not match its checksum")
    return manifest


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run folder, newest (highest step) first, verified or not."""
    found = [(int(match[1]), path) for path in run.glob("checkpoint-*") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True)]


def newest_good(run: Path, say: Callable[[str], None] = print) -> Path | None:
    """The newest checkpoint that verifies. A damaged one is named and passed over. What a cut-off save left goes."""
    for leftover in run.glob(TEMPORARY + "*"):
        shutil.rmtree(leftover, ignore_errors=True)
    for folder in checkpoints(run):
        try:
            verify(folder)
            return folder
        except DamagedCheckpoint as fault:
            say(f"passing over a damaged checkpoint: {fault}")
    return None


def rotate(run: Path, keep: int | None, spared: str | None = None) -> None:
    """Deletes the oldest checkpoints beyond `keep` (None or 0 keeps all), never the newest, never `spared`."""
    if not keep:
        return
    for folder in checkpoints(run)[keep:]:
        if spared is None or folder.name != Path(spared).name:
            shutil.rmtree(folder, ignore_errors=True)
