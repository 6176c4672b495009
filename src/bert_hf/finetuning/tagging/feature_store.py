"""A memory-mapped file of the hidden states of all words of a run, computed once by the frozen BERT."""

import hashlib
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from bert_hf.config.hardware import free_disk
from bert_hf.errors import InputError

_NAME = "features-{}.npy"  # of the key


class FeatureStore:
    """(words, K, H) float32 hidden states in one file, of which only the rows that are read are in memory.

    Pickled for a worker process, it is a path: the file is mapped again there.

    Attributes:
        path: the file; None before it is made.
    """

    def __init__(self) -> None:
        self.path: Path | None = None
        self._array: Any = None

    def __getstate__(self) -> dict:
        return {"path": self.path, "_array": None}

    def make(
        self, folder: Path, key: str, shape: tuple[int, int, int], batches: Iterable[tuple[np.ndarray, Tensor]]
    ) -> bool:
        """Makes the file in a folder, unless an interrupted run left a complete one of this key; True if it was made.

        Args:
            shape: (words, K, H).
            batches: (rows, their features), read only where the file is made.

        Raises:
            InputError: the disk has too little free space.
        """
        self.path = folder / _NAME.format(key)
        if self.path.exists():
            return False

        folder.mkdir(parents=True, exist_ok=True)
        self.remove(folder)  # those of another run, or incomplete
        need, free = 4 * math.prod(shape), free_disk(folder)
        if free < need:
            what = f"the features take {need / 1e9:,.2f} GB, and {free / 1e9:,.2f} GB are free"
            raise InputError(what, where=folder, remedy="free some space, or give another --output_dir")

        partial = self.path.with_name(f"{self.path.name}.partial")
        array = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=shape)
        for rows, features in batches:
            array[rows] = features.cpu().numpy()
        array.flush()
        del array
        partial.rename(self.path)
        return True

    def read(self, first: int, count: int) -> np.ndarray:
        """Rows `first` to `first + count`."""
        if self._array is None:
            assert self.path is not None  # it was made
            self._array = np.load(self.path, mmap_mode="r")
        return self._array[first : first + count]

    def remove(self, folder: Path) -> None:
        """Removes every such file from a folder, incomplete ones too."""
        self._array = None
        for path in folder.glob(_NAME.format("*") + "*"):
            path.unlink(missing_ok=True)


def store_key(network: nn.Module, *described: Any) -> str:
    """Sixteen hexadecimal digits of a SHA-256 of a network's weights and of arrays or JSON values."""
    checksum = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        checksum.update(name.encode())
        checksum.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    for value in described:
        checksum.update(value.tobytes() if isinstance(value, np.ndarray) else json.dumps(value).encode())
    return checksum.hexdigest()[:16]
