"""What surrounds every run: start (output folder, resume, seed) and finish (evaluate, save, card, push)."""

import json
import shlex
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from accelerate.utils import broadcast_object_list
from transformers import Trainer, TrainingArguments, set_seed
from transformers.utils import logging

from bert_hf import checkpointing, hub
from bert_hf.errors import InputError

RECORD = "run.json"  # says that a folder is a run of ours, which one, and whether it ended
_WRITTEN = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "special_tokens_map.json",
    "README.md",
    "train_results.json",
    "eval_results.json",
    "test_results.json",
    "all_results.json",
    "trainer_state.json",
    "loss.png",
    "log_history.csv",
    "run.json",
]


@dataclass
class Start:
    """How a run begins: at a checkpoint, from the beginning (None), or not at all (`finished`)."""

    checkpoint: str | None
    finished: bool


def start(args: TrainingArguments, identity: dict) -> Start:
    """Looks at the output folder: a new run, one to go on with, a finished one, or another run's.

    Args:
        identity: what makes two runs the same one: model shape, tokenizer, data, seed, global batch, optimizer,
            schedule. Flat, JSON values.

    Raises:
        InputError: the folder holds another run (the keys that differ are named) or something that is not a run.
    """
    logging.set_verbosity_warning()
    identity = json.loads(json.dumps(identity))
    result: list = [None]
    if args.process_index == 0:
        try:
            result = [_look(Path(args.output_dir), args, identity)]
        except InputError as error:
            result = [error]
    if args.world_size > 1:
        broadcast_object_list(result)
    if isinstance(result[0], InputError):
        raise result[0]
    set_seed(args.seed)
    return result[0]


def _look(folder: Path, args: TrainingArguments, identity: dict) -> Start:
    record = _read_record(folder)
    if getattr(args, "overwrite_output_dir", False) and folder.exists() and any(folder.iterdir()):
        _remove_ours(folder, record)
        write_record(folder, identity, finished=False)
        return Start(None, False)
    if record is None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(
                "the output folder holds something that no run of ours wrote",
                where=folder,
                remedy="give another --output_dir",
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_record(folder, identity, finished=False)
        return Start(args.resume_from_checkpoint and _named(args.resume_from_checkpoint), False)
    if differing := [key for key in identity if record["identity"].get(key) != identity[key]]:
        key = differing[0]
        was, now = record["identity"].get(key), identity[key]
        raise InputError(
            f"the output folder holds another run: {', '.join(differing)} differ ({key}: {was} there, {now} here)",
            where=folder,
            remedy="give another --output_dir, or --overwrite_output_dir to lose that run",
        )
    if record["finished"]:
        print(f"{folder} holds this very run, finished. Its figures: {folder / 'all_results.json'}", flush=True)
        return Start(None, True)
    named = args.resume_from_checkpoint
    if named and named not in (True, "true", "True"):
        return Start(_named(named), False)
    newest = checkpointing.newest_good(folder, lambda line: print(line, flush=True))
    if newest is not None:
        print(f"going on from {newest}", flush=True)
    return Start(str(newest) if newest else None, False)


def _named(checkpoint: str) -> str:
    try:
        checkpointing.verify(Path(checkpoint))
    except checkpointing.DamagedCheckpoint as fault:
        raise InputError(f"damaged: {fault}", where=checkpoint, remedy="name another checkpoint") from None
    return checkpoint


def _read_record(folder: Path) -> dict | None:
    try:
        record = json.loads((folder / RECORD).read_text())
        return record if isinstance(record.get("identity"), dict) else None
    except (OSError, ValueError, AttributeError):
        return None


def write_record(folder: Path, identity: dict, finished: bool) -> None:
    record = {"bert_hf": version("bert-hf"), "identity": identity, "finished": finished}
    temporary = folder / f".{RECORD}"
    temporary.write_text(json.dumps(record, indent=2) + "\n")
    temporary.replace(folder / RECORD)


def _remove_ours(folder: Path, record: dict | None) -> None:
    if record is None:
        if not folder.is_dir() or any(folder.iterdir()):
            raise InputError(
                f"--overwrite_output_dir removes only runs of ours, and there is no {RECORD}",
                where=folder,
                remedy="remove the folder yourself, or give another --output_dir",
            )
        return
    for checkpoint in [*checkpointing.checkpoints(folder), *folder.glob(checkpointing.TEMPORARY + "*")]:
        shutil.rmtree(checkpoint)
    for name in _WRITTEN:
        (folder / name).unlink(missing_ok=True)


def free_folder(output_dir: str | None, overwrite: bool, ours: tuple[str, ...], resumable: bool = False) -> Path:
    """The folder a recipe without a Trainer may write: new, empty, or (with `overwrite`) one of ours.

    Args:
        ours: globs of the files that such a run writes; the first is one by which its folder is known.
        resumable: a folder of ours may be gone on with.
    """
    if output_dir is None:
        raise InputError("no output folder is named", where="--output_dir", remedy="give one")
    folder = Path(output_dir)
    beside = (".tmp", "lengths.png")  # what another part is writing; the doctor's picture
    if folder.exists() and (not folder.is_dir() or not all(path.name.endswith(beside) for path in folder.iterdir())):
        known = (folder / ours[0]).is_file()
        if known and resumable and not overwrite:
            return folder
        if not (overwrite and known):
            remedy = "give another --output_dir" + (", or --overwrite_output_dir" if known else "")
            raise InputError("the output folder is not empty", where=folder, remedy=remedy)
        for path in [path for pattern in reversed(ours) for path in folder.glob(pattern)]:  # the known one at last
            path.unlink()
    return folder


# ---- the end of every run


def take_push(args: TrainingArguments) -> str | None:
    """Takes the push out of Trainer's hands, which loses errors and sends too much; returns where it shall go."""
    if args.hub_token is not None:
        raise InputError(
            "a token is not taken as a flag", where="--hub_token", remedy="set HF_TOKEN or `hf auth login`"
        )
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
    trainer.save_metrics("train", train_metrics)
    for split, figures in (metrics or {}).items():
        trainer.save_metrics(split, figures)
    trainer.save_state()
    if not trainer.is_world_process_zero():
        return
    folder = Path(trainer.args.output_dir)
    if baselines:
        path = folder / "all_results.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **baselines}, indent=4, sort_keys=True) + "\n")
    hub.write_curves(trainer.state.log_history, folder, baselines or {})
    card.repo_id = push_to
    hub.write_card(folder, card, json.loads((folder / "all_results.json").read_text()))
    if push_to:
        asked = trainer.args
        address = hub.push(folder, push_to, private=asked.hub_private_repo, revision=asked.hub_revision)
        print(f"pushed to {address}", flush=True)
    write_record(folder, json.loads(json.dumps(identity)), finished=True)


def command_line() -> str:
    """The command that was given, for the card."""
    return shlex.join(["accelerate", "launch", *sys.argv])


def say(args: TrainingArguments, text: str) -> None:
    """Prints on rank 0."""
    if args.process_index == 0:
        print(text, flush=True)


def describe_machine(args: TrainingArguments) -> str:
    """Device, threads and precision of a run, in words."""
    device = f"CPU, {torch.get_num_threads()} threads" if args.device.type == "cpu" else str(args.device)
    ranks = f" × {args.world_size} ranks" if args.world_size > 1 else ""
    return f"{device}{ranks}, {'bf16' if args.bf16 else 'fp16' if args.fp16 else 'fp32'}"
