"""The output folder of a command: who may write into it, and the lock of the one process that does."""

import contextlib
import errno
import fcntl
import os
import re
import socket
from io import FileIO
from pathlib import Path

from transformers import TrainingArguments

from bert_hf.console import logger
from bert_hf.errors import InputError

LOCK = ".lock"  # held by the one process that writes into the folder; names it

# Left by interrupted writes: our own files (`.NAME.tmp`) and folders (`NAME.tmp`), and safetensors' weights
_TEMPORARY = re.compile(r".+\.tmp|\.tmp\w{6}")

_lock: FileIO | None = None  # the open lock file; the kernel releases the lock when the process ends in any way


def folder_of(args: TrainingArguments) -> Path:
    """Return --output_dir as a path."""
    assert args.output_dir is not None  # transformers sets a default
    return Path(args.output_dir)


def check_no_foreign_files(folder: Path, marker: str) -> None:
    """Raise an `InputError` if a folder without `marker`, the file that marks it as ours, contains files."""
    if not _is_new_or_empty(folder):
        problem = f"the output folder contains files, and no {marker} that marks them as ours"
        raise InputError(problem, where=folder, remedy="give another --output_dir")


def _is_new_or_empty(folder: Path) -> bool:
    """Return True for a folder that does not exist, or has only our lock and temporary files."""
    if not folder.exists():
        return True
    return folder.is_dir() and all(path.name == LOCK or _TEMPORARY.fullmatch(path.name) for path in folder.iterdir())


def claim_output_dir(output_dir: str | None, overwrite: bool, ours: tuple[str, ...], resumable: bool = False) -> Path:
    """Return the folder that a recipe without a Trainer may write: new, empty, or with earlier results of the recipe.

    `ours` are globs of the files that the recipe writes; the first names the file that marks a folder as its own.
    There `overwrite` removes them all, and a `resumable` recipe may go on. Any other folder is an `InputError`.
    """
    if output_dir is None:
        raise InputError("missing option", where="--output_dir", remedy="give a folder")
    folder = Path(output_dir)
    if _is_new_or_empty(folder):
        return folder

    # After `_is_new_or_empty`: a process that prepares another part of the corpus may begin at the same moment
    if not (folder / ours[0]).is_file():
        check_no_foreign_files(folder, marker=ours[0])
    elif (folder / "config.json").is_file():  # a tokenizer's files are there as well
        raise InputError("the output folder contains a model", where=folder, remedy="give another --output_dir")
    elif overwrite:
        for path in [path for pattern in reversed(ours) for path in folder.glob(pattern)]:
            path.unlink(missing_ok=True)  # the first of `ours` comes last: until then the folder is marked
    elif not resumable:
        hint = "use another --output_dir, or --overwrite_output_dir"
        raise InputError("output folder is not empty", where=folder, remedy=hint)
    return folder


def take_lock(folder: Path) -> None:
    """Lock a folder for this process until it ends; an `InputError` where another process has locked it."""
    global _lock
    release_lock()
    _lock = open(folder / LOCK, "ab", buffering=0)  # noqa: SIM115 - held until the process ends
    try:
        # A record lock: the workers of data loaders do not inherit it, so they cannot hold it after this process
        fcntl.lockf(_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            logger.warning(f"{folder}: the file system does not support locks; let only one process write there")
            return
        holder = (folder / LOCK).read_text(encoding="utf-8") or "another process"
        remedy = "wait for it, stop it or give another --output_dir"
        raise InputError(f"{holder} is writing to the output folder", where=folder, remedy=remedy) from None

    with contextlib.suppress(OSError):  # only for that message: a full disk is reported by the first real write
        _lock.truncate(0)
        _lock.write(f"process {os.getpid()} on {socket.gethostname()}".encode())


def release_lock() -> None:
    """Release the lock of `take_lock`, if this process holds one."""
    global _lock
    if _lock is not None:
        _lock.close()
        _lock = None


def remove_leftovers(folder: Path) -> None:
    """Remove the files that a killed process was writing; called by the process that holds the lock."""
    for path in folder.glob(".*"):
        if _TEMPORARY.fullmatch(path.name) and path.is_file():
            path.unlink()
