"""What surrounds every run: start (output folder, resume, seed) and finish (evaluate, save, card, push)."""

import functools
import json
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate.utils import broadcast_object_list
from transformers import Trainer, TrainingArguments

from bert_hf.config.precision import precision_name, settle_precision
from bert_hf.errors import one_line_errors
from bert_hf.training import checkpointing, hub, output_folder
from bert_hf.training.output_folder import recorded, write_record
from bert_hf.training.preemption import handle_signals


def command(main: Callable[..., int]) -> Callable[..., int]:
    """Decorates the `main` of a recipe that trains: errors are one line, and signals end it in good order."""

    @functools.wraps(main)
    def guarded(*args, **kwargs) -> int:
        try:
            with handle_signals():
                return one_line_errors(main)(*args, **kwargs)  # said before the next signal can end it
        finally:
            output_folder.release_lock()

    return one_line_errors(guarded)


def choose_precision(args: TrainingArguments, hidden_size: int) -> None:
    """Settles `args.bf16` where the command does not give it: as the run began, else by the rule of `precision.py`."""
    told = [_recorded_precision(args) if args.process_index == 0 else None]
    if args.world_size > 1:
        broadcast_object_list(told)
    line = settle_precision(args, hidden_size, told[0])
    if line is not None:
        log_rank0(args, line)


def _recorded_precision(args: TrainingArguments) -> str | None:
    """The precision of the run in the output folder, or else of the checkpoint that --resume_from_checkpoint names."""
    if not args.overwrite_output_dir and (entries := recorded(Path(args.output_dir), "precision")):
        return entries[0]
    named = args.resume_from_checkpoint
    if not named or named in (True, "true", "True"):
        return None
    manifest = Path(named) / checkpointing.MANIFEST
    try:
        return json.loads(manifest.read_text())["identity"]["precision"] if manifest.is_file() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # `start` verifies it, and says what is wrong


# ---- the end of every run


def take_push(args: TrainingArguments) -> str | None:
    """Takes the push out of Trainer's hands, which loses errors and sends too much; returns where it shall go."""
    if not args.push_to_hub:
        return None
    args.push_to_hub = False
    return args.hub_model_id or Path(args.output_dir).name


def finish(
    trainer: Trainer,
    train_metrics: dict,
    *,
    identity: dict,
    card: hub.Card,
    push_to: str | None = None,
    metrics: dict[str, dict] | None = None,
    baselines: dict | None = None,
) -> None:
    """Saves model, tokenizer, figures, curves and card, pushes if asked, and marks the run as finished.

    Args:
        metrics: figures by split (`eval`, `test`), saved as `SPLIT_results.json` and in `all_results.json`.
        push_to: repository id on the Hub; None does not push.
    """
    trainer.save_model()
    trainer.save_state()
    if not trainer.is_world_process_zero():
        return
    folder = Path(trainer.args.output_dir)
    figures = _write_results(folder, {"train": train_metrics, **(metrics or {})}, baselines or {})
    hub.write_curves(trainer.state.log_history, folder, baselines or {})
    card.repo_id = push_to
    hub.write_card(folder, card, figures)
    if push_to:
        asked = trainer.args
        address = hub.push(folder, push_to, private=asked.hub_private_repo, revision=asked.hub_revision)
        print(f"pushed to {address}", flush=True)
    write_record(folder, json.loads(json.dumps(identity)), finished=True)


def _write_results(folder: Path, metrics: dict[str, dict], baselines: dict) -> dict:
    """`SPLIT_results.json` of each split, and all of them in `all_results.json`, which is returned.

    The stock method adds to what it finds there, and what was cut off in the middle of being written is no JSON.
    """
    together: dict = dict(baselines)
    for split, figures in metrics.items():
        together |= figures
        text = json.dumps(figures, indent=4, sort_keys=True) + "\n"
        checkpointing.write_durably(folder / f"{split}_results.json", text)
    text = json.dumps(together, indent=4, sort_keys=True) + "\n"
    checkpointing.write_durably(folder / "all_results.json", text)
    return json.loads(text)


def log_rank0(args: TrainingArguments, text: str) -> None:
    """Prints on rank 0."""
    if args.process_index == 0:
        print(text, flush=True)


def describe_machine(args: TrainingArguments) -> str:
    """Device, threads and precision of a run, in words."""
    device = f"CPU, {torch.get_num_threads()} threads" if args.device.type == "cpu" else str(args.device)
    ranks = f" × {args.world_size} ranks" if args.world_size > 1 else ""
    return f"{device}{ranks}, {precision_name(args)}"
