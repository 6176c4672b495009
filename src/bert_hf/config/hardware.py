"""Reads and sets the properties of the machine: CPU threads, memory, distributed engine."""

import ctypes
import os
import re
import sys
from pathlib import Path

import torch
from transformers import TrainingArguments

_M_TRIM_THRESHOLD = -1  # of glibc's malloc.h
_M_MMAP_MAX = -4


def engine(args: TrainingArguments | None = None) -> str:
    """Return the engine that keeps the optimizer's state: `deepspeed`, or else `torch` (one device, DDP, FSDP)."""
    by_launcher = os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() in ("1", "true")
    return "deepspeed" if by_launcher or (args is not None and args.deepspeed) else "torch"


def shards_weights() -> bool:
    """Return True if DeepSpeed or FSDP may divide weights among the ranks."""
    fsdp = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() in ("1", "true")
    return engine() == "deepspeed" or fsdp


def cpu_threads() -> int:
    """Return the number of threads for this rank: `cores_of_rank`, unless the user set OMP_NUM_THREADS."""
    threads = os.environ.get("OMP_NUM_THREADS")  # also set by launchers
    if threads is not None and threads.isdigit() and (not was_launched() or _user_set_threads()):
        return int(threads)
    return cores_of_rank()


def cores_of_rank() -> int:
    """Return the CPU cores divided by local ranks, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def keep_freed_memory() -> None:
    """Make glibc (Linux) keep freed memory for the next step (docs/speed.md), unless the user has set malloc up."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    user_set = "malloc" in tunables or any(name.startswith("MALLOC_") for name in os.environ)
    if mallopt is not None and not user_set:
        mallopt(_M_MMAP_MAX, 0)  # no block is a mapping of its own, which `free` would return
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)  # bytes that may be free at the top of the heap: the maximum


def device_name(device: torch.device) -> str:
    """Return the model of a CUDA GPU; for other devices the type, on Linux with the model of the CPU: `CPU AMD …`."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if device.type == "cpu" and cpuinfo.exists() else ""
    model = re.search(r"model name\s*: (.+)", text)
    return f"{device.type.upper()} {model[1]}" if model else device.type.upper()


def was_launched() -> bool:
    """Return True where `accelerate launch` or torchrun, which set these variables, started this process."""
    return "ACCELERATE_MIXED_PRECISION" in os.environ or "LOCAL_RANK" in os.environ


def _user_set_threads() -> bool:
    """Return True if the launcher itself got OMP_NUM_THREADS (Linux); `accelerate launch` sets it to 1 for ranks."""
    try:
        environment = Path(f"/proc/{os.getppid()}/environ").read_bytes()
    except OSError:
        return os.environ.get("OMP_NUM_THREADS") != "1"  # cannot be told: 1 is taken as the launcher's
    return any(entry.startswith(b"OMP_NUM_THREADS=") for entry in environment.split(b"\0"))
