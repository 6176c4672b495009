"""The ranks of a run: their engine, order of summation and seeds, and how they agree on values and errors."""

import datetime
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from accelerate.utils import DistributedType
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainingArguments

from bert_hf.config.hardware import engine, shards_weights
from bert_hf.errors import BAD_INPUT, UNAVAILABLE, InputError, RunInterrupted, error_line
from bert_hf.training.patching import replaced_attributes

T = TypeVar("T")


def seed_of_rank(seed: int, rank: int) -> int:
    """Return the seed of what a rank draws for itself, such as dropout: a different one for each run seed and rank."""
    return int(np.random.SeedSequence([seed, rank]).generate_state(1)[0])


def checked_engine(model: Any, world_size: int) -> str:
    """Return what distributes a model: DDP, FSDP2, `ZeRO 1` … or none; an `InputError` if not as configured."""
    model = getattr(model, "_orig_mod", model)  # without the wrapper of torch.compile
    class_name = type(model).__name__
    if isinstance(model, FSDPModule):
        actual = "FSDP2"
    elif class_name == "DeepSpeedEngine":
        actual = f"ZeRO {model.zero_optimization_stage()}"
    else:
        actual = "DDP" if class_name == "DistributedDataParallel" else "none"

    if shards_weights():
        asked = "ZeRO" if engine() == "deepspeed" else "FSDP2"
    else:
        asked = "DDP" if world_size > 1 else "none"
    if not actual.startswith(asked):
        problem = f"accelerate ignores {asked} here: the class of the model is {class_name}"
        remedy = "start with a file of configs/accelerate (FSDP needs fsdp_version: 2)"
        raise InputError(problem, where="distributed_type", remedy=remedy)
    return actual


def shard_on_cpu(args: TrainingArguments) -> None:
    """Make accelerate shard on CPU ranks if the settings ask for it: for its type MULTI_CPU it ignores FSDP's."""
    state: Any = args.distributed_state
    if shards_weights() and state.distributed_type == DistributedType.MULTI_CPU:
        state.distributed_type = DistributedType.MULTI_GPU  # which accelerate replaces by FSDP


def arrange_buckets(model: Any) -> None:
    """Make DDP arrange its buckets of gradients before the first step: it does so after its first backward.

    From three ranks on, the order in which a gradient is summed depends on its place in a bucket, so that the first
    step of a resumed run would be rounded otherwise than the same step of an uninterrupted one.
    """
    if not isinstance(model, DistributedDataParallel) or model.static_graph:  # which the first backward records
        return
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # Run a backward pass that gives each of them a gradient of zero
    with replaced_attributes(model.module, forward=lambda: sum(parameter.sum() * 0 for parameter in trained)):
        model().backward()
    model.zero_grad()


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
        """Begin to agree on the maximum over all ranks of each request, and return a function that gives the result.

        With several ranks `requests` is called now; with one rank, only when the result is asked for.
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
        """Return True on all ranks if `mine` is true on any."""
        return bool(self.begin_agreement(lambda: [mine])()[0])

    def gather(self, mine: object) -> list:
        """Return the values of all ranks, in the order of ranks."""
        if self._group is None:
            return [mine]
        values: list = [None] * self.count
        dist.all_gather_object(values, mine, group=self._group)
        return values

    def run_on_all_ranks(self, action: Callable[[], T]) -> list[T]:
        """Run `action` on all ranks and return the results of all. An error on one of several ends all."""
        if self.count == 1:
            return [action()]
        value = unexpected = None
        failure: tuple[str, int] | None = None  # line to print, exit code
        try:
            value = action()
        except (Exception, RunInterrupted) as error:
            line = error_line(error)
            failure = line or repr(error), getattr(error, "code", BAD_INPUT if line else UNAVAILABLE)
            unexpected = None if line else error

        outcomes = self.gather((value, failure))
        failures = {rank: failure for rank, (_, failure) in enumerate(outcomes) if failure}
        if not failures:
            return [value for value, _ in outcomes]
        if unexpected is not None:
            raise unexpected  # on its own rank, with its traceback; the others raise `RunInterrupted`
        rank, (line, code) = next(iter(failures.items()))
        raise RunInterrupted(line if len(failures) == self.count else f"rank {rank}: {line}", code)


@functools.cache
def _all_ranks() -> Ranks:
    """Return the ranks of this process's launch, always the same object: each construction makes a gloo group."""
    return Ranks(dist.get_rank(), dist.get_world_size())


def gather_values(value: Any) -> list:
    """Return the values of all ranks of the launch, in their order, for functions without a `Ranks`. All call it."""
    return _all_ranks().gather(value) if dist.is_initialized() else [value]


def rank0_value(value: Any) -> Any:
    """Return on all ranks the value that rank 0 passes. All of them call it."""
    return gather_values(value)[0]
