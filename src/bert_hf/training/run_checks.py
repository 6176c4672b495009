"""Checks a training run before its data are prepared: what would otherwise fail only after hours."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import get_token
from transformers.integrations.integration_utils import get_available_reporting_integrations

from bert_hf.config.files import check_writable
from bert_hf.config.training_arguments import RunArguments
from bert_hf.console import logger
from bert_hf.errors import InputError, check_known
from bert_hf.training.optimization.optimizers import check_optimizer, option_text
from bert_hf.training.optimization.schedules import check_schedule
from bert_hf.training.output_folder import RUN_RECORD, check_no_foreign_files, read_record, requested_checkpoint
from bert_hf.training.run_fingerprint import weights_checksum


def check_run(args: RunArguments, metrics: tuple[str, ...]) -> Iterator[str]:
    """Check output folder, optimizer, schedule, device and Hub, and yield one line per successful check.

    Args:
        metrics: those of the run's evaluations; () where they are only known once the rows are read.
    """
    # Folders
    folder = Path(args.output_dir or "")
    yield check_writable(str(folder))
    if not (folder / RUN_RECORD).is_file():
        check_no_foreign_files(folder, args.overwrite_output_dir)
    checkpoint = requested_checkpoint(args)
    if checkpoint and not Path(checkpoint).is_dir():
        remedy = "give a folder checkpoint-N, or leave it out"
        raise InputError("no such checkpoint", where=checkpoint, remedy=remedy)

    # Optimizer, schedule, device, metric
    check_optimizer(args)
    check_schedule(args)
    if args.fp16 and args.use_cpu:
        raise InputError(
            "fp16 training is not supported on a CPU", where="--fp16", remedy="leave it out, or give --bf16 true"
        )
    best = args.metric_for_best_model
    if best and metrics:
        check_known(best.removeprefix("eval_"), metrics, f"no metric {best!r}", "--metric_for_best_model")
    yield f"run: {option_text(args.optim)}, {option_text(args.lr_scheduler_type)} schedule, seed {args.seed}"

    # Trackers, Hub
    for tracker in args.report_to or []:
        check_known(tracker, get_available_reporting_integrations(), f"{tracker!r} is not installed", "--report_to")
    if args.push_to_hub and get_token() is None:
        remedy = "set HF_TOKEN or run `hf auth login`"
        raise InputError("not logged in to the Hub", where="--push_to_hub", remedy=remedy)


def evaluated_checkpoint(args: RunArguments, named: str | None) -> str:
    """What is evaluated without training: the checkpoint that is named, else the finished run in the output folder.

    The run there is also evaluated if it began with the checkpoint that is named, as in the command that trained it.
    """
    folder = Path(args.output_dir or "")
    record = read_record(folder / RUN_RECORD)
    if record is None and named is not None:
        return named

    if record is None or not record["finished"]:
        remedy = "train first, or give --model_name_or_path and another --output_dir"
        raise InputError("no finished run to evaluate", where=folder, remedy=remedy)
    is_its_own = named is None or folder.resolve() == Path(named).resolve()
    if not is_its_own and record["identity"].get("weights") != weights_checksum(str(named)):
        raise InputError("the output folder contains another run", where=folder, remedy="give another --output_dir")
    return str(folder)


def use_trained_options(options: Any, trained: Mapping[str, Any] | None) -> None:
    """Sets the options that are not given to those of the training: columns, lengths, stride, context, …"""
    for name, value in (trained or {}).items():
        given = getattr(options, name, None)
        is_default = given == getattr(type(options), name, None) and name not in options.from_command_line
        if hasattr(options, name) and is_default and value is not None and given != value:
            logger.info(f"{name}: {value}, as in training")
            setattr(options, name, value)
