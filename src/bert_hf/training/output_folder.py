"""The output folder of a run: a new run, one to resume, a finished one, or another run's."""

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import socket
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from accelerate.utils import broadcast_object_list
from transformers import TrainingArguments, set_seed
from transformers.utils import logging

from bert_hf.errors import InputError
from bert_hf.training import checkpointing
from bert_hf.training.run_fingerprint import describe, differences
from bert_hf.training.trainer_state import check_checkpoint_compatible
from bert_hf.training.watchdog import RECORD as HANGS

_lock = None  # the open lock file: the kernel lets go of it when the process is gone, however it went
RECORD = "run.json"  # says that a folder is a run of ours, which one, and whether it ended


# Names of what is renamed when it is written: our records, a folder's probe, safetensors' weights; and what
# ranks write for each other.
_UNFINISHED = re.compile(
    r"\.(run|\w+_results)\.json\.tmp|\.shared-\d+\.tmp|\.tmp\w{6}|\.watchdog\.json\.\d+\.tmp|\.progress-rank\d+"
)


LOCK = ".lock"  # held by the one job that writes there; names it


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
    HANGS,
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
            schedule. JSON values, or groups of them by name (see `identity`).

    Raises:
        InputError: the folder holds another run (the keys that differ are named) or something that is not a run.
    """
    logging.set_verbosity_warning()
    identity = json.loads(json.dumps(identity))
    result: list = [None]
    if args.process_index == 0:
        try:
            result = [_look(Path(args.output_dir), args, identity)]
        except (InputError, OSError) as error:
            result = [error]
    if args.world_size > 1:
        broadcast_object_list(result)
    if isinstance(result[0], Exception):
        raise result[0]
    set_seed(args.seed)
    return result[0]


def _look(folder: Path, args: TrainingArguments, identity: dict) -> Start:
    record = _read_record(folder)
    overwrite = getattr(args, "overwrite_output_dir", False)
    if folder.exists() and (not folder.is_dir() or (record is None and not overwrite and holds_something(folder))):
        raise InputError(
            "the output folder holds something that no run of ours wrote",
            where=folder,
            remedy="give another --output_dir",
        )
    if overwrite and record is None and folder.exists() and holds_something(folder):
        raise InputError(
            f"--overwrite_output_dir removes only runs of ours, and there is no {RECORD}",
            where=folder,
            remedy="remove the folder yourself, or give another --output_dir",
        )
    folder.mkdir(parents=True, exist_ok=True)
    take_lock(folder)
    _sweep(folder)
    record = _read_record(folder)  # another job may have begun, or ended, meanwhile
    if overwrite and record is not None:
        _remove_ours(folder)
        record = None
    if record is None:
        named = _named(args)
        write_record(folder, identity, finished=False)
        return Start(named, False)
    _refuse_another(folder, record, identity)
    if record["finished"]:
        print(f"{folder} holds this very run, finished. Its figures: {folder / 'all_results.json'}", flush=True)
        return Start(None, True)
    look = _look_at_best if args.load_best_model_at_end else (lambda checkpoint: None)
    newest = checkpointing.newest_verified(folder, lambda line: print(line, flush=True), look, identity=identity)
    behind = newest is None or _step(newest) < _step(args.resume_from_checkpoint)
    if behind and (named := _named(args)):  # else the run has come further since that was said
        return Start(named, False)
    if newest is not None:
        check_checkpoint_compatible(json.loads((newest / checkpointing.MANIFEST).read_text()), args)
        print(f"going on from {newest}", flush=True)
    return Start(str(newest) if newest else None, False)


def _look_at_best(checkpoint: Path) -> None:
    """The model that is kept at the end has to be whole, too: it stands in a checkpoint of its own.

    Raises:
        DamagedCheckpoint: that one is damaged or gone.
    """
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    if best := state.get("best_global_step"):
        checkpointing.verify(checkpoint.with_name(f"checkpoint-{best}"))


def _step(checkpoint: str | Path | None) -> int:
    """The step in the name of a checkpoint's folder; -1 where there is none."""
    name = Path(str(checkpoint)).name
    return int(name.removeprefix("checkpoint-")) if re.fullmatch(r"checkpoint-\d+", name) else -1


def _sweep(folder: Path) -> None:
    """Removes what a killed process was writing under a name of its own; the lock says that nobody writes now."""
    for path in folder.glob(".*"):
        if _UNFINISHED.fullmatch(path.name) and path.is_file():
            path.unlink()


def holds_something(folder: Path) -> bool:
    """True where a folder holds more than the lock of a job and what another one is writing."""
    return any(path.name != LOCK and not _UNFINISHED.fullmatch(path.name) for path in folder.iterdir())


def take_lock(folder: Path) -> None:
    """Holds the folder for this process until it ends.

    Raises:
        InputError: another job writes there.
    """
    global _lock
    _lock = open(folder / LOCK, "a+", encoding="utf-8")  # noqa: SIM115 - held until the process ends
    try:
        # A record lock: the loaders' processes do not inherit it, and so cannot outlive us with it.
        fcntl.lockf(_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            print(
                f"{folder}: its disk knows no locks ({error.strerror}); see to it that one job writes there",
                flush=True,
            )
            return
        _lock.seek(0)
        holder = _lock.read().strip() or "another process"
        raise InputError(
            f"{holder} writes into the output folder",
            where=folder,
            remedy="wait for it or end it, or give another --output_dir",
        ) from None
    with contextlib.suppress(OSError):  # a full disk will be told of when it matters
        _lock.truncate(0)
        _lock.write(f"process {os.getpid()} on {socket.gethostname()}")
        _lock.flush()


def _refuse_another(folder: Path, record: dict, identity: dict) -> None:
    if found := differences(record["identity"], identity):
        raise InputError(
            f"the output folder holds another run: {describe(found)}",
            where=folder,
            remedy="give another --output_dir, or --overwrite_output_dir to lose that run",
        )


def _named(args: TrainingArguments) -> str | None:
    """The checkpoint that --resume_from_checkpoint names, verified; None where it names none."""
    name = args.resume_from_checkpoint
    if not name or name in (True, "true", "True"):
        return None
    try:
        check_checkpoint_compatible(checkpointing.verify(Path(name)), args)
    except checkpointing.DamagedCheckpoint as damage:
        raise InputError(f"damaged: {damage.fault}", where=name, remedy="name another checkpoint") from None
    return name


def _read_record(folder: Path) -> dict | None:
    try:
        record = json.loads((folder / RECORD).read_text())
        return record if isinstance(record.get("identity"), dict) else None
    except (OSError, ValueError, AttributeError):
        return None


def recorded(folder: Path, *keys: str) -> list | None:
    """Entries of the identity of the run that a folder holds; None where it holds none."""
    record = _read_record(folder)
    return [record["identity"].get(key) for key in keys] if record else None


def write_record(folder: Path, identity: dict, finished: bool) -> None:
    record = {"bert_hf": version("bert-hf"), "identity": identity, "finished": finished}
    checkpointing.write_durably(folder / RECORD, json.dumps(record, indent=2) + "\n")


def _remove_ours(folder: Path) -> None:
    for checkpoint in [*checkpointing.checkpoints(folder), *folder.glob(checkpointing.TEMPORARY + "*")]:
        shutil.rmtree(checkpoint)
    for path in [*(folder / name for name in _WRITTEN), *folder.glob("stacks-rank*.txt")]:
        path.unlink(missing_ok=True)


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


def release_lock() -> None:
    """Lets another job write into the folder that `take_lock` holds; does nothing where none is held."""
    global _lock
    if _lock is not None:
        _lock.close()
        _lock = None
