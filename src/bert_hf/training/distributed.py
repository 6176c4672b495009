"""Agreement between ranks (values, errors, the start of a run), and the seed of each rank."""

import contextlib
import datetime
import os
import socket
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
from bert_hf.config.training_arguments import RunArguments
from bert_hf.errors import (
    BAD_INPUT,
    UNAVAILABLE,
    InputError,
    RunInterrupted,
    error_line,
    is_first_of_host,
    print_error,
)
from bert_hf.training.identity import describe, differences
from bert_hf.training.patching import replaced_attributes

T = TypeVar("T")


def seed_of_rank(seed: int, rank: int) -> int:
    """Return the seed of the draws that differ between ranks, such as dropout; another one for every run seed."""
    return int(np.random.SeedSequence([seed, rank]).generate_state(1)[0])


def engine_of(model: Any, ranks: int) -> str:
    """Return the engine that distributes a model, by the class that wraps it: DDP, FSDP2, ZeRO 1, 2 or 3, or none."""
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
    """Make accelerate shard on CPU ranks as it does on GPUs; it ignores the settings of FSDP there."""
    state: Any = args.distributed_state
    if shards_weights() and state.distributed_type == DistributedType.MULTI_CPU:
        state.distributed_type = DistributedType.MULTI_GPU  # the engines that FSDP may replace


def arrange_buckets(model: Any) -> None:
    """Make DDP arrange its buckets of gradients before the first step: it does so after its first backward.

    From three ranks on, the order in which a gradient is summed depends on its place in a bucket, so that the first
    step of a resumed run would be rounded otherwise than the same step of an uninterrupted one.
    """
    if not isinstance(model, DistributedDataParallel) or model.static_graph:
        return
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
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

        Several ranks read their requests now, one rank reads its own with the result.
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
        """Return True if it is true on any rank."""
        return bool(self.begin_agreement(lambda: [mine])()[0])

    def gather(self, mine: object) -> list:
        """Return the values of all ranks, in the order of ranks."""
        if self._group is None:
            return [mine]
        values: list = [None] * self.count
        dist.all_gather_object(values, mine, group=self._group)
        return values

    def agree(self, value: Any = None, *, error: BaseException | None = None, remedy: str | None = None) -> list:
        """Return the values of all ranks. An error of one ends all: the first rank of each host prints it.

        Args:
            remedy: what to do if the values differ; None: they may.
        """
        if error is not None and self.count == 1:
            raise error
        line = None if error is None else error_line(error) or repr(error)
        code = getattr(error, "code", BAD_INPUT if error is None or error_line(error) else UNAVAILABLE)
        outcomes = self.gather((socket.gethostname(), value, line, code))

        lines = _error_lines(outcomes, remedy)
        if not lines:
            return [each for _, each, _, _ in outcomes]

        code = max(code for _, _, _, code in outcomes)
        if is_first_of_host():
            for line in lines:
                print_error(line, code, restart=code == UNAVAILABLE)
        self.gather(None)  # all have printed before one ends: its launcher then stops the others
        if error is not None and error_line(error) is None:
            raise error  # with its traceback
        raise RunInterrupted(lines[0], code, report=False)

    def run_on_all_ranks(self, action: Callable[[], T]) -> list[T]:
        """Run `action` on all ranks and return the results of all; raise on all if it fails on one."""
        try:
            value = action()
        except (Exception, RunInterrupted) as error:
            return self.agree(error=error)
        return self.agree(value)


def _error_lines(outcomes: list[tuple], remedy: str | None) -> list[str]:
    """Return one line for each error and host; host and rank are left out where all ranks have failed."""
    lines: dict[tuple[str, str], str] = {}
    _, first_value, first_line, _ = outcomes[0]
    for rank, (host, value, line, _) in enumerate(outcomes):
        if remedy and line is None and first_line is None:
            changed = differences(first_value, value, was="rank 0 has")
            line = f"{describe(changed)}; {remedy}" if changed else None
        if line is not None:
            lines.setdefault((host, line), f"{host}, rank {rank}: {line}")

    if all(line for _, _, line, _ in outcomes):
        return list({line: None for _, line in lines})
    return list(lines.values())


# ---- the start of a run: until it is over, ranks call each other only by `agree`, so one that fails joins the next

_start: Ranks | None = None
_start_is_over = False


def agree(value: Any = None, remedy: str | None = None, timeout: float = 600, error: Exception | None = None) -> list:
    """Call `Ranks.agree` in the start of a run; the first call sets the timeout (seconds) of all."""
    global _start
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [value]
    # At least as long as a rank waits for the output folder
    _start = _start or Ranks(dist.get_rank(), dist.get_world_size(), max(timeout, 90))
    try:
        return _start.agree(value, error=error, remedy=remedy)
    except RunInterrupted:
        dist.destroy_process_group()  # threads of gloo that still run at the exit may abort the process
        raise


def rank0_value(value: Any) -> Any:
    """Return the value of rank 0, on all ranks."""
    return agree(value)[0]


def end_start() -> None:
    """Agree for the last time in a start: from here on ranks call each other in training."""
    global _start_is_over
    agree()
    _start_is_over = _start is not None


def fail_on_all_ranks(error: Exception) -> None:
    """Report an error in the start of a run on every host, and end all ranks."""
    if _start_is_over or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return
    with contextlib.suppress(RuntimeError):  # the others do not come
        if not dist.is_initialized():
            RunArguments()  # the error is one of the options: joins the others as theirs have done
        agree(error=error)
