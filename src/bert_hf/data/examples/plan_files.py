"""The plans of windows in files that the processes of a machine share: drawn once, memory-mapped by all."""

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
import numpy as np

from bert_hf.data.corpus.checksums import text_checksum
from bert_hf.data.examples.sentence_pairs import EpochPlan

_KEPT = 4  # files: batches that are read ahead may still need the windows before the newest


def shared_plan(folder: Path, key: tuple[int, int, int], draw: Callable[[], EpochPlan]) -> EpochPlan:
    """Return the plan of a window (phase, epoch, window), memory-mapped from its file in a folder on a local disk.

    Whoever asks for it first draws it; the others wait for the file.
    """
    path = folder / f"{'-'.join(map(str, key))}.npy"
    try:
        return _mapped(path)
    except FileNotFoundError:
        folder.mkdir(parents=True, exist_ok=True)

    with filelock.FileLock(folder / ".lock"):  # a process that dies releases it
        if not path.is_file():
            _write(path, draw())
        return _mapped(path)


def _write(path: Path, plan: EpochPlan) -> None:
    temporary = path.with_suffix(".tmp")
    with open(temporary, "wb") as file:
        np.save(file, np.stack(plan).astype(np.int32))  # a window has fewer than 2³¹ sentences
    os.replace(temporary, path)

    # What no process is likely to need; one that does draws it again
    files = sorted(path.parent.glob("*.npy"), key=lambda file: file.stat().st_mtime_ns)
    for old in files[:-_KEPT]:
        old.unlink()


def _mapped(path: Path) -> EpochPlan:
    columns = np.load(path, mmap_mode="r")
    return EpochPlan(*columns.view(np.ndarray))  # an element of a `memmap` takes five times as long to read


@contextlib.contextmanager
def shared_plan_folder(run: Path, first: bool, gather: Callable[[object], list]) -> Iterator[Path]:
    """Yield a temporary folder for the processes of this machine. All ranks of a run call it.

    Args:
        run: output folder of the run; what the same run left when it was killed is removed.
        first: True on the first rank of each machine, which makes the folder.
        gather: returns the values of all ranks.
    """
    prefix = f"bert_hf-{text_checksum(str(run.resolve()))[:16]}-"
    folder: contextlib.AbstractContextManager[str | None] = contextlib.nullcontext()
    if first:
        for leftover in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        folder = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)

    with folder as mine:  # a rank that still needs a plan when it is removed draws it again
        host = socket.gethostname()
        folders = {host: folder for host, folder in gather((host, mine)) if folder}
        yield Path(folders[host])
