"""What surrounds every run: start (output folder, resume, seed) and finish (evaluate, save, card, push)."""

import contextlib
import errno
import fcntl
import functools
import json
import os
import re
import shlex
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import psutil
import torch
from accelerate.utils import broadcast_object_list
from transformers import Trainer, TrainingArguments, set_seed
from transformers.utils import logging

from bert_hf import checkpointing, hub
from bert_hf.errors import InputError, one_line_errors
from bert_hf.identity import describe, differences
from bert_hf.precision import precision_name, settle_precision
from bert_hf.sources import is_url
from bert_hf.stored_trainer import fits
from bert_hf.watch import RECORD as HANGS
from bert_hf.watch import obeying_signals

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


_lock = None  # the open lock file: the kernel lets go of it when the process is gone, however it went


def command(main: Callable[..., int]) -> Callable[..., int]:
    """Decorates the `main` of a recipe that trains: errors are one line, and signals end it in good order."""

    @functools.wraps(main)
    def guarded(*args, **kwargs) -> int:
        global _lock
        try:
            with obeying_signals():
                return one_line_errors(main)(*args, **kwargs)  # said before the next signal can end it
        finally:
            if _lock is not None:
                _lock.close()
                _lock = None

    return one_line_errors(guarded)


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
    newest = checkpointing.newest_good(folder, lambda line: print(line, flush=True), look, identity=identity)
    behind = newest is None or _step(newest) < _step(args.resume_from_checkpoint)
    if behind and (named := _named(args)):  # else the run has come further since that was said
        return Start(named, False)
    if newest is not None:
        fits(json.loads((newest / checkpointing.MANIFEST).read_text()), args)
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
        fits(checkpointing.verify(Path(name)), args)
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


def choose_precision(args: TrainingArguments, hidden_size: int) -> None:
    """Settles `args.bf16` where the command does not give it: as the run began, else by the rule of `precision.py`."""
    told = [_recorded_precision(args) if args.process_index == 0 else None]
    if args.world_size > 1:
        broadcast_object_list(told)
    line = settle_precision(args, hidden_size, told[0])
    if line is not None:
        say(args, line)


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


def command_line(default_config: Path | None = None) -> str:
    """The command that was given, for the card, with the launcher's own options.

    Args:
        default_config: the YAML file that the recipe reads where no option is given; it is then named.
    """
    words = [*_launcher(), *sys.argv]
    if len(sys.argv) == 1 and default_config is not None:
        words += ["--config", os.path.relpath(default_config)]
    return shlex.join(words)


def _launcher() -> list[str]:
    """The words before the script, e.g. `accelerate launch --config_file a.yaml`, from the parent's command line.

    (The launcher tells its child neither its options nor the name of its file.)
    """
    names = {"accelerate": ["accelerate"], "accelerate-launch": ["accelerate-launch"], "torchrun": ["torchrun"]}
    names["accelerate.commands.launch"] = ["accelerate", "launch"]
    try:
        words = psutil.Process(os.getppid()).cmdline()
    except psutil.Error:
        words = []

    before = words[: words.index(sys.argv[0])] if sys.argv[0] in words else []
    for place, word in enumerate(before):
        if known := names.get(Path(word).name):
            return known + before[place + 1 :]
    launched = "ACCELERATE_MIXED_PRECISION" in os.environ or "LOCAL_RANK" in os.environ
    return ["accelerate", "launch"] if launched else ["python"]


def program(name: str, absolute: bool = False) -> str:
    """How the shell calls a program of this Python installation: by name, or by path where that means another."""
    own, found = Path(sys.executable).with_name(name), shutil.which(name)
    if not own.is_file() or (found is not None and own.samefile(found)):
        return name
    below = own.is_relative_to(Path.cwd()) and not absolute
    return str(own.relative_to(Path.cwd()) if below else own)


def next_command(root: Path, recipe: str, config: str, **paths: str | Path) -> str:
    """A command that can be pasted into the shell: a recipe under `accelerate_config.yaml`, with a run's YAML file.

    The files of the project name each other relative to its folder; from elsewhere the command goes there first.

    Args:
        root: the project's folder. recipe, config: name and path in it.
        paths: options whose values are paths, as seen from the working directory.
    """
    elsewhere = Path.cwd().resolve() != root.resolve()
    words = [program("accelerate", absolute=elsewhere), "launch"]
    words += ["--config_file", "accelerate_config.yaml", f"recipes/{recipe}.py", "--config", config]
    for option, path in paths.items():
        words += [f"--{option}", os.path.abspath(path) if elsewhere and not is_url(path) else str(path)]

    go_there = f"cd {shlex.quote(str(root.resolve()))} && " if elsewhere else ""
    return go_there + shlex.join(words)


def say(args: TrainingArguments, text: str) -> None:
    """Prints on rank 0."""
    if args.process_index == 0:
        print(text, flush=True)


def describe_machine(args: TrainingArguments) -> str:
    """Device, threads and precision of a run, in words."""
    device = f"CPU, {torch.get_num_threads()} threads" if args.device.type == "cpu" else str(args.device)
    ranks = f" × {args.world_size} ranks" if args.world_size > 1 else ""
    return f"{device}{ranks}, {precision_name(args)}"
