"""What the machine offers a run: device, threads, memory allocation, distributed engine."""

import ctypes
import os
import shutil
import sys
from pathlib import Path

from transformers import TrainingArguments

_M_TRIM_THRESHOLD = -1  # of glibc's malloc.h
_M_MMAP_MAX = -4


def engine(args: TrainingArguments | None = None) -> str:
    """Whose files hold the optimizer's state: `deepspeed`, or `torch` for every other way to distribute."""
    launched = os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() in ("1", "true")
    return "deepspeed" if launched or (args is not None and args.deepspeed) else "torch"


def cpu_threads() -> int:
    """Threads for this rank: cores divided by local ranks, unless the user set OMP_NUM_THREADS.

    `accelerate launch` sets OMP_NUM_THREADS=1 on its own where neither flag nor variable says more. Whether the
    user did is read from the launcher's environment (Linux); elsewhere a launched "1" counts as the launcher's.
    """
    wanted = os.environ.get("OMP_NUM_THREADS")
    if wanted is not None and wanted.isdigit() and (not _launched() or _user_set_threads()):
        return int(wanted)
    return cores_of_rank()


def cores_of_rank() -> int:
    """CPU cores divided by local ranks, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def finds_compiler() -> bool:
    """True where what `torch.compile` generates can be built: by $CXX, or by a compiler of a usual name."""
    return any(shutil.which(name) for name in (os.environ.get("CXX") or "g++", "c++", "clang++"))


def keep_freed_memory() -> None:
    """Lets the C library keep what is freed for the next step, where it is glibc's (Linux).

    By default it returns each large tensor to the kernel, which gives it back page by page, zeroed: 6 % of the time of
    a step of the mini model (docs/speed.md). The process then stays as large as it ever was.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    user_set = any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    )
    if mallopt is not None and not user_set:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def _launched() -> bool:
    return "ACCELERATE_MIXED_PRECISION" in os.environ or "LOCAL_RANK" in os.environ


def _user_set_threads() -> bool:
    try:
        environment = Path(f"/proc/{os.getppid()}/environ").read_bytes()
    except OSError:
        return os.environ.get("OMP_NUM_THREADS") != "1"
    return any(entry.startswith(b"OMP_NUM_THREADS=") for entry in environment.split(b"\0"))
