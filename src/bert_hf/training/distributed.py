"""The processes of a run: what all of them have to agree about, on the host and beside the gradients."""

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from bert_hf.errors import BAD_INPUT, RunInterrupted, error_line


def seed_of_rank(seed: int, rank: int) -> int:
    """A seed for what each rank draws by itself, as dropout: unlike any other rank's, or that of a seed nearby."""
    return int(np.random.SeedSequence([seed, rank]).generate_state(1)[0])


class Ranks:
    """The ranks of a run, with a gloo group of their own: no accelerator has to be waited for.

    Made by all ranks at the same place of the program; so is every call of its methods.
    """

    def __init__(self, rank: int, count: int):
        self.rank, self.count = rank, count
        self._group = dist.new_group(backend="gloo") if count > 1 else None

    def all_reduce_max(self, *mine: float) -> list[float]:
        """The largest value over all ranks, of each."""
        if self._group is None:
            return list(mine)
        values = torch.tensor(mine, dtype=torch.float64)
        dist.all_reduce(values, dist.ReduceOp.MAX, group=self._group)
        return values.tolist()

    def any(self, mine: bool) -> bool:
        """True where it is true on one of them."""
        return bool(self.all_reduce_max(float(mine))[0])

    def gather(self, mine: object) -> list:
        """What each rank has, in the order of ranks."""
        if self._group is None:
            return [mine]
        everybody: list = [None] * self.count
        dist.all_gather_object(everybody, mine, group=self._group)
        return everybody

    def run_on_all_ranks(self, action: Callable[[], None]) -> None:
        """Runs `action` on every rank and waits for all. Where one failed all raise: nobody waits for it in vain."""
        fault: BaseException | None = None
        try:
            action()
        except (Exception, RunInterrupted) as error:
            fault = error
        told = None if fault is None else (error_line(fault) or repr(fault), getattr(fault, "code", BAD_INPUT))
        faults = {rank: each for rank, each in enumerate(self.gather(told)) if each is not None}
        if fault is not None and (self.rank == 0 or error_line(fault) is None):
            raise fault
        for rank, (text, code) in faults.items():  # rank 0 speaks for all
            raise RunInterrupted(f"rank {rank}: {text}", code, report=None if self.rank == 0 else False)

    def processes_here(self) -> dict[int, int]:
        """Process numbers of the ranks of this machine."""
        here = _process_space()
        return {rank: pid for rank, pid, where in self.gather((self.rank, os.getpid(), here)) if where == here}


def _process_space() -> tuple[str, ...]:
    """Tells machines, and containers with process numbers of their own, apart; host names may be equal."""
    told = [socket.gethostname()]
    with contextlib.suppress(OSError):  # Linux
        told += [Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")]
    return tuple(told)
