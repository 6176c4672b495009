"""Decides whether a run starts, resumes, is complete, or conflicts with the run in its output folder."""

import contextlib
import errno
import fcntl
import glob
import itertools
import json
import os
import re
import shutil
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

from transformers import TrainingArguments, set_seed

from bert_hf.config.files import read_json_object, write_durably
from bert_hf.config.training_arguments import RunArguments
from bert_hf.console import logger
from bert_hf.errors import InputError
from bert_hf.training.checkpoints import checkpoint_files
from bert_hf.training.checkpoints.checkpoint_files import step_of
from bert_hf.training.checkpoints.trainer_state import check_checkpoint_compatible
from bert_hf.training.distributed import agree, end_start, rank0_value
from bert_hf.training.optimization.optimizers import global_batch_size, optimizer_identity
from bert_hf.training.run_fingerprint import describe, differences

FORMAT_VERSION = 2  # of the record and of the checkpoints
RUN_RECORD = "run.json"  # marks a folder as one of our runs: which one, and whether it is complete
LOCK = ".lock"  # held by the one process that writes into the folder; names it

# Of interrupted writes: our own files (`.NAME.tmp`) and folders (`NAME.tmp`), and safetensors' weights
_TEMPORARY = re.compile(r".+\.tmp|\.tmp\w{6}")

# Globs of the files of a run, except checkpoints: what --overwrite_output_dir removes
_FILES = (
    "config.json generation_config.json model.safetensors model.safetensors.index.json README.md "
    "tokenizer.json tokenizer_config.json vocab.txt special_tokens_map.json sentence_bert_config.json "
    "train_results.json eval_results.json test_results.json all_results.json trainer_state.json "
    "loss.png log_history.csv null_odds.json *_null_odds.json "
    "reliability.png precision_recall.png mistakes.csv slices.csv svm.npz "
    "predictions.conll predictions.json *_predictions.json *_predictions.tsv "
    "submission/*.tsv "  # of a benchmark
    f"{RUN_RECORD}"
).split()

# Options that name inputs
_INPUTS = (
    "model_name_or_path config_name tokenizer_name train_file validation_file test_file dataset_name "
    "resume_from_checkpoint"
).split()

_lock: TextIO | None = None  # the open lock file; the kernel releases the lock when the process ends in any way


# ---- the start of a run


@dataclass
class RunStart:
    """How a run begins: at a checkpoint, from the beginning (None), or not at all (`finished`)."""

    checkpoint: str | None = None
    finished: bool = False
    push_to: str | None = None  # repository on the Hub


def start(args: RunArguments, identity: dict, options: Iterable[Any] = ()) -> RunStart:
    """Inspects and locks the output folder, and seeds the generators. Called by all ranks together.

    With --overwrite_output_dir another run's files are removed here, once: afterwards the folder holds this run.

    Args:
        identity: what makes two runs the same one: model shape, tokenizer, data, seed, global batch, optimizer,
            schedule. JSON values, or groups of them by name (see `run_fingerprint`).
        options: dataclasses whose fields name the inputs of the run.

    Raises:
        InputError: the folder contains another run (the error lists the keys that differ) or files that are not ours;
            or an input of this run is in a folder that would be overwritten.
    """
    identity = json.loads(json.dumps(identity))

    agree(identity, remedy="give all hosts the same files and the same command")

    folder = folder_of(args)
    run_start = _inspect_output_dir(folder, args, identity, options) if args.process_index == 0 else None
    run_start = rank0_value(run_start)

    if args.process_index and checkpoint_files.wait_for_files(folder, [RUN_RECORD]):
        remedy = "give an --output_dir that all hosts share"
        raise InputError("the output folder is not the one that rank 0 writes to", where=folder, remedy=remedy)
    end_start()

    set_seed(args.seed)
    return run_start


def folder_of(args: TrainingArguments) -> Path:
    """The output folder of a run."""
    assert args.output_dir is not None  # transformers has a default
    return Path(args.output_dir)


def _inspect_output_dir(folder: Path, args: RunArguments, identity: dict, options: Iterable[Any]) -> RunStart:
    """Locks the folder and returns how the run begins. Called by rank 0 alone."""
    if read_record(folder / RUN_RECORD) is None:
        check_no_foreign_files(folder, args.overwrite_output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    take_lock(folder)
    for path in folder.glob(".*"):  # what a killed process was writing; no other process writes now
        if _TEMPORARY.fullmatch(path.name) and path.is_file():
            path.unlink()

    # A new run, in place of another one if that is asked for
    record = read_record(folder / RUN_RECORD)  # again: another process may have written it before the lock was taken
    if record is None or _is_another_run(folder, record, identity, args.overwrite_output_dir):
        requested = _verified_requested_checkpoint(args, identity)
        if record is not None:
            _check_inputs_outside(folder, (args, *options))
            for checkpoint in [*checkpoint_files.checkpoints(folder), *folder.glob(checkpoint_files.TEMPORARY + "*")]:
                shutil.rmtree(checkpoint)
            _remove_files(folder, _FILES)  # the record comes last
        write_record(folder, identity, finished=False)
        return _begin_at(requested, folder, args)

    # A complete run
    if record["finished"]:
        logger.info(f"{folder}: this run is already complete; metrics: {folder / 'all_results.json'}")
        return RunStart(finished=True)

    # A run to resume
    check = _check_best if args.load_best_model_at_end else lambda checkpoint: None
    newest = checkpoint_files.newest_verified(folder, check=check)
    if newest is None or step_of(newest) < step_of(args.resume_from_checkpoint):
        requested = _verified_requested_checkpoint(args, identity)
        if requested or newest is None:
            return _begin_at(requested, folder, args)

    check_checkpoint_compatible(json.loads((newest / checkpoint_files.MANIFEST).read_text()), args)
    logger.info(f"resuming from {newest}")
    return RunStart(str(newest))


def _is_another_run(folder: Path, record: dict, identity: dict, overwrite: bool) -> bool:
    """True if the record is that of another run than `identity`, which is refused unless it may be overwritten."""
    if record.get("format_version") != FORMAT_VERSION:
        problem = "contains a run of another version of bert_hf"
    elif different := differences(record["identity"], identity):
        problem = f"the output folder contains another run: {describe(different)}"
    else:
        return False

    if not overwrite:
        hint = "give another --output_dir, or --overwrite_output_dir to lose that run"
        if _is_longer(record["identity"], identity) and (found := checkpoint_files.checkpoints(folder)):
            hint = f"to continue it, add --resume_from_checkpoint {found[0]} and give another --output_dir"
        raise InputError(problem, where=folder, remedy=hint)
    return True


def _is_longer(recorded: dict, identity: dict) -> bool:
    """Return whether only the number of steps or epochs is larger, so that a checkpoint can be continued."""
    lengths = ("max_steps", "num_train_epochs")
    schedule, before = (each.get("schedule") or {} for each in (identity, recorded))
    same = {**identity, "schedule": {**schedule, **{name: before.get(name) for name in lengths}}}
    longer = any((schedule.get(name) or 0) > (before.get(name) or 0) for name in lengths)
    return longer and not differences(recorded, same) and not (identity.get("examples") or {}).get("long_seq_length")


def _check_inputs_outside(folder: Path, options: Iterable[Any]) -> None:
    """Checks that the run does not remove its own inputs."""
    for each, name in itertools.product(options, _INPUTS):
        value = getattr(each, name, None)
        for path in [value] if isinstance(value, str) else value or []:
            places = map(Path, glob.glob(path) or [path])
            if any(place.resolve().is_relative_to(folder.resolve()) for place in places):
                raise InputError(
                    f"{path} is inside the output folder, which would be overwritten",
                    where=f"--{name}",
                    remedy="give another --output_dir",
                )


def _best_beside(checkpoint: Path) -> Path | None:
    """The checkpoint of the best model until then, in the same folder."""
    best = json.loads((checkpoint / "trainer_state.json").read_text()).get("best_global_step")
    return checkpoint.with_name(f"checkpoint-{best}") if best else None


def _check_best(checkpoint: Path) -> None:
    """Verifies the best model's checkpoint too, which the run loads at its end."""
    if best := _best_beside(checkpoint):
        checkpoint_files.verify(best)


def _begin_at(checkpoint: str | None, folder: Path, args: RunArguments) -> RunStart:
    """Begins with a checkpoint of another folder, whose best model, until there is a better one, is this run's too."""
    best = _best_beside(Path(checkpoint)) if checkpoint and args.load_best_model_at_end else None
    if best is not None and best.is_dir() and not (folder / best.name).exists():
        copied = shutil.copytree(best, folder / f"{checkpoint_files.TEMPORARY}{best.name}", dirs_exist_ok=True)
        copied.rename(folder / best.name)
    return RunStart(checkpoint)


def requested_checkpoint(args: TrainingArguments) -> str | None:
    """The folder that --resume_from_checkpoint names; None where it names none."""
    name = args.resume_from_checkpoint
    return None if not name or str(name).lower() == "true" else str(name)


def _verified_requested_checkpoint(args: TrainingArguments, identity: dict) -> str | None:
    """The folder that --resume_from_checkpoint names, verified: of the same run, which may now be longer."""
    name = requested_checkpoint(args)
    if name is None:
        return None

    manifest = checkpoint_files.verify_named(Path(name))
    check_checkpoint_compatible(manifest, args)
    recorded = manifest.get("identity")  # a Trainer in a program of one's own records none
    if recorded:
        # In a longer run, a sequence length that changes at a share of the steps would change at others
        same_length = bool((identity.get("examples") or {}).get("long_seq_length"))
        now = identity if same_length else {**identity, "schedule": dict(identity.get("schedule") or {})}
        for option in () if same_length else ("max_steps", "num_train_epochs"):
            now["schedule"][option] = (recorded.get("schedule") or {}).get(option)
        if different := differences(recorded, now):
            raise InputError(
                f"the checkpoint belongs to another run: {describe(different)}",
                where=name,
                remedy="--model_name_or_path begins a new run with its weights",
            )
    return name


# ---- the record


def read_record(path: Path) -> dict | None:
    """The record of a run in a file, `run.json` or another with an `identity`; None if it has no record."""
    record = read_json_object(path)
    return record if record and isinstance(record.get("identity"), dict) else None


def recorded(folder: Path) -> dict | None:
    """The identity of the run in a folder, or of the run that a checkpoint belongs to; None if there is none."""
    record = read_record(folder / RUN_RECORD) or read_record(folder / checkpoint_files.MANIFEST)
    return record["identity"] if record else None


def recorded_by_this_run(args: RunArguments) -> dict | None:
    """The identity in the output folder, whose precision and number of steps a resumed run keeps.

    With --overwrite_output_dir the folder may hold another run, which is told by its seed, batch and optimizer: the
    whole identity of this run is not known when this is asked.
    """
    identity = recorded(folder_of(args))
    if identity is None or not args.overwrite_output_dir:
        return identity

    optimizer = {name: value for name, value in optimizer_identity(args).items() if value is not None}
    now = {"seed": args.seed, "global_batch": global_batch_size(args), "optimizer": optimizer}
    recorded_optimizer = identity.get("optimizer") or {}
    before = {**identity, "optimizer": {name: recorded_optimizer.get(name) for name in optimizer}}
    return None if differences(before, json.loads(json.dumps(now))) else identity


def write_record(folder: Path, identity: dict, finished: bool, pushed: dict | None = None) -> None:
    """Writes `run.json`.

    Args:
        pushed: where to, if it was: `to` and `revision` as they were given, and the full id of the `repository`.
    """
    record = {"format_version": FORMAT_VERSION, "bert_hf": version("bert-hf"), "identity": identity}
    record |= {"finished": finished, "pushed": pushed}
    write_durably(folder / RUN_RECORD, json.dumps(record, indent=2) + "\n")


# ---- files in the folder


def check_no_foreign_files(folder: Path, overwrite: bool, marker: str = RUN_RECORD) -> None:
    """Raises an error unless the folder is empty; called for a folder without a record of ours."""
    if not folder.exists() or (folder.is_dir() and not holds_something(folder)):
        return
    problem = "the output folder contains files that bert_hf did not write"
    if overwrite:
        problem += f" (no {marker}), and --overwrite_output_dir removes only those of a run"
    raise InputError(problem, where=folder, remedy="give another --output_dir")


def holds_something(folder: Path) -> bool:
    """True where a folder holds more than a lock and temporary files."""
    return any(path.name != LOCK and not _TEMPORARY.fullmatch(path.name) for path in folder.iterdir())


def _remove_files(folder: Path, patterns: Iterable[str]) -> None:
    for path in [path for pattern in patterns for path in folder.glob(pattern)]:
        path.unlink(missing_ok=True)


def claim_output_dir(output_dir: str | None, overwrite: bool, ours: tuple[str, ...], resumable: bool = False) -> Path:
    """The folder that a recipe without a Trainer may write: new, empty, or (with `overwrite`) one of ours.

    Args:
        ours: globs of the files that such a recipe writes; a folder of ours is known by the first.
        resumable: the recipe may continue in a folder of ours.
    """
    if output_dir is None:
        raise InputError("missing option", where="--output_dir", remedy="give a folder")
    folder = Path(output_dir)
    if not folder.exists() or (folder.is_dir() and not holds_something(folder)):
        return folder

    # Looked for after the listing: another part of a corpus may begin at the same moment
    if not (folder / ours[0]).is_file():
        check_no_foreign_files(folder, overwrite, marker=ours[0])
    elif (folder / "config.json").is_file():  # its tokenizer has the files that mark a vocabulary
        raise InputError("the output folder contains a model", where=folder, remedy="give another --output_dir")
    elif overwrite:
        _remove_files(folder, reversed(ours))  # the file by which the folder is known comes last
    elif not resumable:
        hint = "use another --output_dir, or --overwrite_output_dir"
        raise InputError("output folder is not empty", where=folder, remedy=hint)
    return folder


# ---- the lock


def take_lock(folder: Path) -> None:
    """Locks the folder for this process until it ends.

    Raises:
        InputError: another process holds the lock.
    """
    global _lock
    release_lock()
    _lock = open(folder / LOCK, "a+", encoding="utf-8")  # noqa: SIM115 - held until the process ends
    try:
        # A record lock: worker processes of the loaders do not inherit it, so they cannot hold it after this process
        fcntl.lockf(_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            logger.warning(
                f"{folder}: the file system does not support locks ({error.strerror}); "
                "make sure that only one process writes there"
            )
            return
        _lock.seek(0)
        holder = _lock.read().strip() or "another process"
        raise InputError(
            f"{holder} is writing to the output folder",
            where=folder,
            remedy="wait for it, stop it or give another --output_dir",
        ) from None

    with contextlib.suppress(OSError):  # the name is optional: a full disk is reported by the first real write
        _lock.truncate(0)
        _lock.write(f"process {os.getpid()} on {socket.gethostname()}")
        _lock.flush()


def release_lock() -> None:
    """Releases the lock of `take_lock`, if this process holds one."""
    global _lock
    if _lock is not None:
        with contextlib.suppress(OSError):  # closed all the same: the name had found no space, and is tried again
            _lock.close()
        _lock = None
