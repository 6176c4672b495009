"""Lets the ranks that torchelastic restarts find each other."""

import os
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import _rendezvous_handlers
from transformers import TrainingArguments


def join_ranks(args: TrainingArguments) -> None:
    """Make the process group of CPU ranks; Trainer, which makes the group of GPUs, would omit `--ddp_timeout`."""
    _use_new_keys_after_restarts()
    if args.use_cpu and int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        dist.init_process_group(args.ddp_backend or "gloo", timeout=timedelta(seconds=args.ddp_timeout))


def _use_new_keys_after_restarts() -> None:
    """Give each attempt of a launch with `--max-restarts` its own keys in the launcher's store.

    The store outlives the ranks: the next attempt would read the addresses of dead ranks from it (torch 2.13).
    Called before the process group exists; torch has no public place between its store and its first use.
    """
    if os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") == "0" or dist.is_initialized():
        return
    stock_handler = _rendezvous_handlers["env"]

    def handler(url: str, timeout: timedelta, **kwargs):
        store, rank, ranks = next(stock_handler(url, timeout=timeout, **kwargs))
        attempt = _name_of_attempt(store, rank, ranks, time.monotonic() + timeout.total_seconds())
        prefixed = dist.PrefixStore(attempt, store)  # pyright: ignore[reportPrivateImportUsage] - a documented name
        yield prefixed, rank, ranks

    _rendezvous_handlers["env"] = handler


def _name_of_attempt(store: Any, rank: int, ranks: int, deadline: float) -> str:
    """Return a name that rank 0 of this attempt has drawn, the same on all ranks.

    The number of the restart would not do: the launchers of two hosts may count differently. So each rank asks under
    a name of its own, which no dead rank 0 can have answered, and rank 0 answers until every rank has said that it
    knows.
    """
    mine = uuid.uuid4().hex
    store.set(f"asks/{rank}", mine)
    if rank:
        _wait(store, [f"answer/{mine}"], deadline)
        name = store.get(f"answer/{mine}").decode()
        store.set(f"knows/{name}/{rank}", "")
        return name

    def answer() -> None:
        for other in range(1, ranks):
            if store.check([f"asks/{other}"]):
                store.set(f"answer/{store.get(f'asks/{other}').decode()}", mine)

    _wait(store, [f"knows/{mine}/{other}" for other in range(1, ranks)], deadline, answer)
    return mine


def _wait(store: Any, keys: list[str], deadline: float, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Wait until all keys exist, or until the deadline; signals are handled."""
    while not store.check(keys) and time.monotonic() < deadline:
        meanwhile()
        time.sleep(0.05)
