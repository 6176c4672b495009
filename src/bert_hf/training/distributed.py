"""Agreement between ranks (values, errors), and the seed of each rank."""

import contextlib
import datetime
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from accelerate.utils import DistributedType, broadcast_object_list
from torch.distributed.fsdp import FSDPModule
from transformers import TrainingArguments

from bert_hf.config.hardware import engine, shards_weights
from bert_hf.errors import BAD_INPUT, InputError, RunInterrupted, error_line

T = TypeVar("T")


def seed_of_rank(seed: int, rank: int) -> int:
    """A seed for what each rank draws independently, such as dropout: different for every rank and every run seed."""
    return int(np.random.SeedSequence([seed, rank]).generate_state(1)[0])


def rank0_value(value, args: TrainingArguments) -> Any:
    """Broadcasts rank 0's value."""
    values = [value]
    if args.world_size > 1:
        broadcast_object_list(values)
    return values[0]


@contextlib.contextmanager
def same_order_on_all_ranks(seed: int, ranks: int) -> Iterator[None]:
    """Context manager: gives all ranks the same global generator, from which a shuffled dataset's order is drawn.

    Without it, a second `train` would find the ranks' generators in different states.
    """
    if ranks == 1:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def engine_of(model: Any, ranks: int) -> str:
    """The engine that distributes a model, by the class that wraps it: DDP, FSDP2, ZeRO 1, 2 or 3, or none.

    Raises:
        InputError: the launcher asks for another engine, which accelerate has ignored without a word.
    """
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    kind = type(model).__name__
    if isinstance(model, FSDPModule):
        actual = "FSDP2"
    elif kind == "DeepSpeedEngine":
        actual = f"ZeRO {model.zero_optimization_stage()}"
    else:
        actual = "DDP" if kind == "DistributedDataParallel" else "none"

    sharded = "ZeRO" if engine() == "deepspeed" else "FSDP2"
    asked = sharded if shards_weights() else "DDP" if ranks > 1 else "none"
    if not actual.startswith(asked):
        raise InputError(
            f"accelerate ignores {asked} here: the class of the model is {kind}",
            where="distributed_type",
            remedy="start with a file of configs/accelerate (FSDP needs fsdp_version: 2)",
        )
    return actual


def shard_on_cpu(args: TrainingArguments) -> None:
    """Makes accelerate shard on CPU ranks as it does on GPUs; it ignores the settings of FSDP there."""
    state: Any = args.distributed_state
    if shards_weights() and state.distributed_type == DistributedType.MULTI_CPU:
        state.distributed_type = DistributedType.MULTI_GPU  # the engines that FSDP may replace


class Ranks:
    """The ranks of a run, with their own gloo group, so that agreeing never waits for an accelerator.

    All ranks construct it at the same point of the program, and all of them make every call of its methods.
    """

    def __init__(self, rank: int, count: int, timeout_seconds: float = 600):
        self.rank = rank
        self.count = count
        timeout = datetime.timedelta(seconds=timeout_seconds)
        self._group = dist.new_group(backend="gloo", timeout=timeout) if count > 1 else None

    def begin_agreement(self, requests: Callable[[], Sequence[float]]) -> Callable[[], Sequence[float]]:
        """Begins to agree on the maximum over all ranks of each request; what it returns gives the result.

        Ranks read their requests now, so that the result is there when it is asked for a step later. A single rank
        agrees with nobody: its requests are read when the result is.
        """
        if self._group is None:
            return requests

        values = torch.tensor(requests(), dtype=torch.float64)
        reduction: Any = dist.all_reduce(values, dist.ReduceOp.MAX, group=self._group, async_op=True)

        def result() -> list[float]:
            reduction.wait()
            return values.tolist()

        return result

    def any(self, mine: bool) -> bool:
        """True if it is true on any rank."""
        return bool(self.begin_agreement(lambda: [mine])()[0])

    def gather(self, mine: object) -> list:
        """The values of all ranks, in the order of ranks."""
        if self._group is None:
            return [mine]
        values: list = [None] * self.count
        dist.all_gather_object(values, mine, group=self._group)
        return values

    def run_on_all_ranks(self, action: Callable[[], T]) -> list[T]:
        """Runs `action` on all ranks, returns what it returns on each, and raises everywhere if it fails on one.

        So no rank waits in a collective call for a rank that has already failed.
        """
        failure: BaseException | None = None
        mine = value = None
        try:
            value = action()
        except (Exception, RunInterrupted) as error:
            failure = error
            mine = (error_line(error) or repr(error), getattr(error, "code", BAD_INPUT))
        outcomes = self.gather((mine, value))
        failures = {rank: each for rank, (each, _) in enumerate(outcomes) if each is not None}

        if failure is not None and (self.rank == 0 or error_line(failure) is None):
            raise failure
        for rank, (text, code) in failures.items():  # the first one; rank 0 prints it
            raise RunInterrupted(f"rank {rank}: {text}", code, report=None if self.rank == 0 else False)
        return [value for _, value in outcomes]
