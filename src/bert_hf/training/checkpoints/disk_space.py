"""Compares the disk that the checkpoints of a run will take with the disk that is free."""

import math
from pathlib import Path

from transformers import TrainingArguments

from bert_hf.config.hardware import free_disk
from bert_hf.console import Finding

_CHECKPOINT_BYTES = 12  # per parameter: fp32 weight and both moments of Adam
_MODEL_BYTES = 4  # per parameter, of the model that is saved at the end


def checkpoint_bytes(parameters: int, args: TrainingArguments) -> int:
    """Bytes of disk that a run's checkpoints and its model take at most at one time.

    The newest `save_total_limit` checkpoints stay, and the best one where a metric decides; the oldest is removed only
    after the next one is complete. With a limit of 2 and a best one, four are there while the fourth is written:

        best   newest but one   newest   (being written)

    Args:
        args: with `max_steps`, the planned steps. With `save_minutes` the number of checkpoints is unknown: as many as
            stay, and one more.
    """
    by_minutes = getattr(args, "save_minutes", 0) > 0
    if args.save_strategy == "no" and not by_minutes:
        return _MODEL_BYTES * parameters

    most = (args.save_total_limit or math.inf) + bool(args.metric_for_best_model)  # that stay
    every = args.save_steps if args.save_steps >= 1 else args.save_steps * args.max_steps
    planned = math.ceil(args.max_steps / every)
    if by_minutes:
        planned = most + 1 if args.save_total_limit else max(planned, 2)

    kept = int(min(planned, most))
    written = int(min(planned, most + 1))
    return parameters * max(_CHECKPOINT_BYTES * written, _CHECKPOINT_BYTES * kept + _MODEL_BYTES)


def disk_finding(parameters: int, args: TrainingArguments) -> Finding:
    """The line of a report: what the checkpoints take, and what is free."""
    need = checkpoint_bytes(parameters, args)
    free = free_disk(Path(str(args.output_dir)).expanduser())
    text = f"checkpoints take up to {need / 1e9:,.2f} GB at one time; {free / 1e9:,.2f} GB of disk are free"
    return Finding(text, "lower --save_total_limit, or write elsewhere" if need > free else "")
