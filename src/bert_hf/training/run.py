"""Shared steps of every training recipe: signals, errors, precision, console output, saving, pushing."""

import functools
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

from bert_hf.config.files import write_durably
from bert_hf.config.hardware import device_name
from bert_hf.config.precision import precision_name, resolve_precision
from bert_hf.config.training_arguments import RunArguments
from bert_hf.console import logger
from bert_hf.errors import InputError, one_line_errors
from bert_hf.training import output_folder
from bert_hf.training.distributed import rank0_value
from bert_hf.training.output_folder import (
    folder_of,
    read_record,
    recorded,
    recorded_by_this_run,
    release_lock,
    requested_checkpoint,
    write_record,
)
from bert_hf.training.preemption import explain_start, handle_signals
from bert_hf.training.publishing import push
from bert_hf.training.publishing.card import Card, replace_repository, write_card
from bert_hf.training.publishing.curves import write_curves


def command(main: Callable[..., int]) -> Callable[..., int]:
    """Decorates the `main` of a recipe that trains: an error is one line, and a signal ends it with all saved."""

    @functools.wraps(main)
    def guarded(*args, **kwargs) -> int:
        warnings.filterwarnings("ignore", category=FutureWarning, module="torch")  # what libraries call in it
        try:
            with handle_signals():
                # Prints the line before a second signal can end it
                return one_line_errors(explain_start()(main))(*args, **kwargs)
        finally:
            release_lock()

    return one_line_errors(guarded)


def start_run(args: RunArguments, identity: dict, *options: Any) -> output_folder.RunStart:
    """Inspects the output folder (see `output_folder.start`), and takes the push over from Trainer.

    A run that is already complete is pushed here, as it was saved.
    """
    run_start = output_folder.start(args, identity, options)
    if args.push_to_hub:
        run_start.push_to = args.hub_model_id or folder_of(args).name
        args.push_to_hub = False  # Trainer ignores errors and sends too much
    if run_start.finished and run_start.push_to and args.process_index == 0:
        _push_finished(args, run_start.push_to)
    return run_start


# ---- precision


def choose_precision(args: RunArguments, hidden_size: int) -> None:
    """Sets `args.bf16` where the command does not give it: as the run began, else by the rule of `precision.py`."""
    identity = recorded_by_this_run(args)
    if identity is None and (named := requested_checkpoint(args)):
        identity = recorded(Path(named))
    before = rank0_value((identity or {}).get("precision"))

    line = resolve_precision(args, hidden_size, before)
    if line is not None:
        logger.info(line)


def describe_machine(args: TrainingArguments) -> str:
    """Device, threads and precision of a run, in words."""
    device = device_name(args.device)
    if args.device.type == "cpu":
        device += f", threads: {torch.get_num_threads()}"
    ranks = f" × {args.world_size} ranks" if args.world_size > 1 else ""
    return f"{device}{ranks}, {precision_name(args)}"


# ---- the end of every run


def finish(
    trainer: Trainer,
    train_metrics: dict,
    *,
    identity: dict,
    card: Card,
    push_to: str | None,
    metrics: dict[str, dict],
    baselines: dict,
) -> None:
    """Saves model, tokenizer, metrics, curves and card, pushes if asked, and marks the run as complete.

    Args:
        metrics: by split (`eval`, `test`), saved as `SPLIT_results.json` and in `all_results.json`.
        push_to: repository id on the Hub; None does not push.
        baselines: metrics of models without a network; drawn into the curves and saved in `all_results.json`.
    """
    trainer.save_model()
    trainer.save_state()
    if not trainer.is_world_process_zero():
        return

    # Metrics, curves, card
    folder = folder_of(trainer.args)
    results = _write_results(folder, {"train": train_metrics, **metrics}, baselines)
    write_curves(trainer.state.log_history, folder, baselines)
    write_card(folder, card, results)
    pushed = _push(trainer.args, push_to, folder.name) if push_to else None
    write_record(folder, identity, finished=True, pushed=pushed)


def _push(args: TrainingArguments, push_to: str, named: str) -> dict:
    """Pushes a run whose card loads the model from `named`, and makes it load the repository; returns the record."""
    folder, revision = folder_of(args), args.hub_revision
    full_id = push.create_repository(folder, push_to, private=args.hub_private_repo, revision=revision)
    replace_repository(folder, named, full_id)
    try:
        logger.info(f"pushed to {push.upload(folder, full_id, revision=revision)}")
    except InputError:
        replace_repository(folder, full_id, named)  # the next push may go elsewhere
        raise
    return {"to": push_to, "revision": revision, "repository": full_id}


def _push_finished(args: RunArguments, push_to: str) -> None:
    """Pushes a complete run, unless it was pushed to there."""
    folder = folder_of(args)
    record = read_record(folder / output_folder.RUN_RECORD) or {}
    before = record.get("pushed") or {}
    if (before.get("to"), before.get("revision")) != (push_to, args.hub_revision):
        pushed = _push(args, push_to, before.get("repository", folder.name))
        write_record(folder, record["identity"], finished=True, pushed=pushed)


def _write_results(folder: Path, metrics: dict[str, dict], baselines: dict) -> dict:
    """Writes `SPLIT_results.json` of each split, and `all_results.json`, whose metrics are returned.

    (Trainer's own method adds to the file that it finds, and fails if an interrupted write left half of one.)
    """
    together = dict(baselines)
    for results in metrics.values():
        together |= results

    for name, results in {**metrics, "all": together}.items():
        text = json.dumps(results, indent=4) + "\n"  # the metrics in the order of their task
        write_durably(folder / f"{name}_results.json", text)
    return json.loads(json.dumps(together, sort_keys=True))
