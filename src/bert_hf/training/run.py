"""A run: its output folder, what identifies it, the files that it wrote, and where it is pushed."""

import contextlib
import glob
import itertools
import json
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import get_token
from transformers import Trainer, TrainingArguments, set_seed
from transformers.integrations.integration_utils import get_available_reporting_integrations

from bert_hf.config.files import check_writable, read_json_object, write_durably
from bert_hf.config.hardware import device_name
from bert_hf.config.precision import precision_name
from bert_hf.config.training_arguments import RunArguments
from bert_hf.console import logger
from bert_hf.errors import InputError, check_known
from bert_hf.training.checkpoints import checkpoint_files
from bert_hf.training.checkpoints.checkpoint_files import MANIFEST, step_of
from bert_hf.training.checkpoints.trainer_state import check_checkpoint_compatible
from bert_hf.training.distributed import gather_values, rank0_value
from bert_hf.training.identity import describe_differences, differences, weights_checksum
from bert_hf.training.optimization import optimizers
from bert_hf.training.output_folder import check_no_foreign_files, folder_of, remove_leftovers, take_lock
from bert_hf.training.publishing.card import Card, write_card
from bert_hf.training.publishing.curves import write_curves
from bert_hf.training.publishing.push import push

RUN_RECORD = "run.json"  # marks a folder as one of our runs
EXAMPLES = "examples.json"  # texts that were held out, for the demo; they are not pushed
_RECORDED = ("identity", "finished", "pushed", "files")  # attributes of a run that its record has
_DURATION = ("max_steps", "num_train_epochs")  # settings of a schedule

# Options that name inputs
_INPUTS = (
    "model_name_or_path config_name tokenizer_name train_file validation_file test_file dataset_name "
    "resume_from_checkpoint"
).split()


@dataclass
class Run:
    """A run in its output folder, as `run.json` there records it.

    >>> run = start_run(args, identity, corpus_args)  # locks the folder; run.finished: nothing is left to do
    >>> trainer.train(resume_from_checkpoint=run.checkpoint)
    >>> with run.writing(public=["confusion.png"]) as folder:
    >>>     draw(folder / "confusion.png")
    >>> run.finish(trainer, trained, card=card, metrics={"eval": metrics}, baselines={})
    """

    folder: Path
    identity: dict  # the settings that distinguish it from other runs (`identity.py`), as JSON values
    checkpoint: str | None = None  # the folder to resume from; None at the first step
    finished: bool = False
    files: dict[str, bool] = field(default_factory=dict)  # that it wrote, by name; True for public ones, to be pushed
    pushed: list | None = None  # repository and revision to which it was pushed
    push_to: str | None = None  # repository on the Hub; None does not push
    writes: bool = True  # on this rank

    @classmethod
    def read(cls, folder: Path) -> "Run | None":
        """Return the run that a folder records; None without a record."""
        content = read_json_object(folder / RUN_RECORD) or {}
        if not isinstance(content.get("identity"), dict):
            return None
        return cls(folder, **{name: content[name] for name in _RECORDED if name in content})

    def record(self) -> None:
        """Write the state of the run to `run.json`."""
        content = {"bert_hf": version("bert-hf"), **{name: getattr(self, name) for name in _RECORDED}}
        write_durably(self.folder / RUN_RECORD, json.dumps(content, indent=2) + "\n")

    @contextlib.contextmanager
    def writing(self, public: bool | Collection[str] = False) -> Iterator[Path]:
        """Context manager: yield the folder, then record the files that appeared or changed in it as the run's.

        `public`: which of them are pushed; True for all but those in subfolders, False for none, or their names.
        """
        if not self.writes:
            yield self.folder
            return
        before = self._file_states()
        try:
            yield self.folder
        finally:  # an interrupted run owns what it has begun to write
            written = [name for name, state in self._file_states().items() if before.get(name) != state]
            for name in written:
                if isinstance(public, bool):
                    is_public = public and "/" not in name
                else:
                    is_public = name in public
                self.files[name] = is_public or self.files.get(name, False)
            if written:
                self.record()

    def _file_states(self) -> dict[str, tuple[int, int, int]]:
        """Return (inode, time, size) by file, in direct subfolders too; no checkpoints, hidden files or record."""
        states = {}
        for path in itertools.chain(self.folder.glob("*"), self.folder.glob("*/*")):
            name = path.relative_to(self.folder)
            is_left_out = step_of(name.parts[0]) >= 0 or name.parts[0].startswith(".") or path.name == RUN_RECORD
            if path.is_file() and not is_left_out:
                status = path.stat()
                states[str(name)] = (status.st_ino, status.st_mtime_ns, status.st_size)
        return states

    def write_examples(self, rows: list[list[str]]) -> None:
        """Write some held-out rows, each a list of its texts, which the demo offers as examples."""
        with self.writing() as folder:
            if self.writes:
                write_durably(folder / EXAMPLES, json.dumps(rows, ensure_ascii=False) + "\n")

    def remove(self) -> None:
        """Remove the checkpoints and files that the run wrote, its record last."""
        unfinished = self.folder.glob(checkpoint_files.TEMPORARY + "*")
        for path in [*checkpoint_files.checkpoints(self.folder), *unfinished]:
            shutil.rmtree(path)
        for path in [self.folder / name for name in self.files]:
            if path.resolve().is_relative_to(self.folder.resolve()):  # the record may have been edited
                path.unlink(missing_ok=True)
        (self.folder / RUN_RECORD).unlink()

    def finish(
        self, trainer: Trainer, trained: dict, *, card: Card, metrics: dict[str, dict], baselines: dict
    ) -> None:
        """Save model, tokenizer, metrics, curves and card, push if asked, and record that the run is complete.

        The metrics are by split (`eval`, `test`); the baselines are metrics of models without a network.
        """
        with self.writing(public=True) as folder:
            trainer.save_model()
            trainer.save_state()
            if self.writes:
                results = _write_results(folder, {"train": trained, **metrics}, baselines)
                write_curves(trainer.state.log_history, folder, baselines)
                write_card(folder, card, results, self.identity)
        if self.writes:
            if self.push_to:
                self.push(trainer.args)
            self.finished = True
            self.record()

    def push(self, args: TrainingArguments) -> None:
        """Push the public files to `push_to`, with a card that loads the model from there, and record that."""
        names = [name for name, public in self.files.items() if public]
        options = {"private": args.hub_private_repo, "revision": args.hub_revision}
        address = push(self.folder, str(self.push_to), names, **options)
        logger.info(f"pushed to {address}")
        self.pushed = [self.push_to, args.hub_revision]
        self.record()


def _write_results(folder: Path, metrics: dict[str, dict], baselines: dict) -> dict:
    """Write `SPLIT_results.json` of each split, and `all_results.json`; return all metrics with the baselines."""
    all_metrics = dict(baselines)
    for results in metrics.values():
        all_metrics |= results

    for split, results in {**metrics, "all": all_metrics}.items():
        text = json.dumps(results, indent=4) + "\n"  # the metrics in the order of their task
        write_durably(folder / f"{split}_results.json", text)
    return dict(sorted(all_metrics.items()))


# ---- checks before the data are prepared


def check_run(args: RunArguments, metrics: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of `--check`; an `InputError` for an option of the run that cannot be used.

    `metrics`: the names that --metric_for_best_model may give; empty where they are not known yet.
    """
    folder = folder_of(args)
    yield check_writable(str(folder))
    # An evaluation without training leaves results, but no record
    was_evaluated = not args.do_train and (folder / "eval_results.json").is_file()
    if not (folder / RUN_RECORD).is_file() and not was_evaluated:
        check_no_foreign_files(folder, RUN_RECORD)
    checkpoint = requested_checkpoint(args)
    if checkpoint and not Path(checkpoint).is_dir():
        raise InputError("no such checkpoint", where=checkpoint, remedy="give a folder checkpoint-N, or leave it out")

    optimizers.check_optimizer(args)
    optimizers.check_schedule(args)
    if args.fp16 and args.use_cpu:
        remedy = "leave it out, or give --bf16 true"
        raise InputError("fp16 training is not supported on a CPU", where="--fp16", remedy=remedy)
    best = args.metric_for_best_model
    if best and metrics:
        check_known(best.removeprefix("eval_"), metrics, f"no metric {best!r}", "--metric_for_best_model")
    names = map(optimizers.option_text, (args.optim, args.lr_scheduler_type))
    yield f"run: {', '.join(names)} schedule, seed {args.seed}"

    for tracker in args.report_to or []:
        if tracker not in get_available_reporting_integrations():
            remedy = "pip install 'bert-hf[tensorboard]', 'bert-hf[trackio]' or 'bert-hf[wandb]'"
            raise InputError(f"{tracker!r} is not installed", where="--report_to", remedy=remedy)
    if args.push_to_hub and get_token() is None:
        remedy = "set HF_TOKEN or run `hf auth login`"
        raise InputError("not logged in to the Hub", where="--push_to_hub", remedy=remedy)


def describe_machine(args: TrainingArguments) -> str:
    """Return device, threads and precision of a run, in words."""
    device = device_name(args.device)
    if args.device.type == "cpu":
        device += f", threads: {torch.get_num_threads()}"
    ranks = f" × {args.world_size} ranks" if args.world_size > 1 else ""
    return f"{device}{ranks}, {precision_name(args)}"


# ---- the start of a run


def start_run(args: RunArguments, identity: dict, *options: Any) -> Run:
    """Lock the output folder, seed the generators, and return the run that begins, continues or is finished there.

    Called by all ranks together. With --overwrite_output_dir another run's files are removed here, once; an
    `InputError` if the `options` name an input there. A finished run is pushed if it should be and has not been.
    """
    identity = json.loads(json.dumps(identity))  # as `run.json` has it: lists in place of tuples
    identities = gather_values(identity)
    for rank, other in enumerate(identities):
        if changed := differences(identities[0], other, was="rank 0 has"):
            remedy = "give all hosts the same files and the same command"
            raise InputError(f"rank {rank}: {describe_differences(changed)}", where=folder_of(args), remedy=remedy)
    begun = _begin_or_continue(args, identity, options) if args.process_index == 0 else None
    run: Run = rank0_value(begun)
    run.writes = args.process_index == 0
    if not run.writes and checkpoint_files.wait_for_files(run.folder, [RUN_RECORD]):
        remedy = "give an --output_dir that all hosts share"
        raise InputError("the output folder is not the one that rank 0 writes to", where=run.folder, remedy=remedy)
    set_seed(args.seed)

    if args.push_to_hub:
        args.push_to_hub = False  # Trainer's own push ignores errors and sends too much
        run.push_to = args.hub_model_id or run.folder.name
        if run.finished and run.writes and run.pushed != [run.push_to, args.hub_revision]:
            run.push(args)
    return run


def _begin_or_continue(args: RunArguments, identity: dict, options: Iterable[Any]) -> Run:
    """Lock the folder, and return a new, finished or resumed run, with its checkpoint. Called by rank 0 only."""
    folder = folder_of(args)
    if Run.read(folder) is None:
        check_no_foreign_files(folder, RUN_RECORD)
    folder.mkdir(parents=True, exist_ok=True)
    take_lock(folder)
    remove_leftovers(folder)

    # A new run; --overwrite_output_dir removes another one
    run = Run.read(folder)  # again: another process may have written it before the lock was taken
    changed = differences(run.identity, identity) if run is not None else {}
    if run is not None and changed and not args.overwrite_output_dir:
        raise _another_run_error(run, identity, changed)
    if run is None or changed:
        requested = _verified_requested_checkpoint(args, identity)
        if run is not None:
            _check_inputs_are_outside(folder, (args, *options))
            run.remove()
        run = Run(folder, identity)
        run.record()
        run.checkpoint = requested
        return run

    # A complete run
    if run.finished:
        logger.info(f"{folder}: this run is already complete; metrics: {folder / 'all_results.json'}")
        return run

    # A run to resume
    run.identity = identity
    check = _verify_with_best if args.load_best_model_at_end else checkpoint_files.verify
    newest = checkpoint_files.newest_verified(folder, check)
    if newest is None or step_of(newest) < step_of(args.resume_from_checkpoint):  # the named one is newer
        requested = _verified_requested_checkpoint(args, identity)
        if requested or newest is None:
            run.checkpoint = requested
            return run

    check_checkpoint_compatible(json.loads((newest / MANIFEST).read_text()), args)
    logger.info(f"resuming from {newest}")
    run.checkpoint = str(newest)
    return run


def _another_run_error(run: Run, identity: dict, changed: dict[str, list[str]]) -> InputError:
    """Return the error for a command whose output folder has another run: what differs, and the remedies."""
    hint = "give another --output_dir, or --overwrite_output_dir to lose that run"
    checkpoints = checkpoint_files.checkpoints(run.folder)
    if checkpoints and not _differences_but_duration(run.identity, identity):
        hint += f"; a longer run continues it with --resume_from_checkpoint {checkpoints[0]}"
    problem = f"the output folder contains another run: {describe_differences(changed)}"
    return InputError(problem, where=run.folder, remedy=hint)


def _differences_but_duration(before: dict, identity: dict) -> dict:
    """Return `differences` but for the number of steps and epochs: a longer run may continue a checkpoint.

    With `long_seq_length` these count as well: a longer run would change the sequence length at another step.
    """
    if not (before.get("examples") or {}).get("long_seq_length"):
        # The duration of `before` in both
        duration = {name: before.get("schedule", {}).get(name) for name in _DURATION}
        identity = {**identity, "schedule": {**identity.get("schedule", {}), **duration}}
    return differences(before, identity)


def _check_inputs_are_outside(folder: Path, options: Iterable[Any]) -> None:
    """Raise an `InputError` if an option names an input in a folder whose files are about to be removed."""
    for arguments, name in itertools.product(options, _INPUTS):
        value = getattr(arguments, name, None)
        patterns = [value] if isinstance(value, str) else value or []
        for pattern in patterns:
            paths = map(Path, glob.glob(pattern) or [pattern])
            if any(path.resolve().is_relative_to(folder.resolve()) for path in paths):
                problem = f"{pattern} is inside the output folder, which would be overwritten"
                raise InputError(problem, where=f"--{name}", remedy="give another --output_dir")


def _verify_with_best(checkpoint: Path) -> None:
    """Verify a checkpoint and the one of the best model up to it; raise `DamagedCheckpoint` if either differs."""
    checkpoint_files.verify(checkpoint)
    if best := checkpoint_files.best_beside(checkpoint):
        checkpoint_files.verify(best)


def requested_checkpoint(args: TrainingArguments) -> str | None:
    """Return the folder that --resume_from_checkpoint names; None without the option, or for `true` (the newest)."""
    name = str(args.resume_from_checkpoint or "true")
    return None if name.lower() == "true" else name


def _verified_requested_checkpoint(args: TrainingArguments, identity: dict) -> str | None:
    """Return the folder that --resume_from_checkpoint names, or None; an `InputError` if damaged or of another run."""
    name = requested_checkpoint(args)
    if name is None:
        return None

    manifest = checkpoint_files.verify_named(Path(name))
    check_checkpoint_compatible(manifest, args)
    before = manifest.get("identity")  # a Trainer in a program of one's own records none
    if before and (changed := _differences_but_duration(before, identity)):
        problem = f"the checkpoint belongs to another run: {describe_differences(changed)}"
        raise InputError(problem, where=name, remedy="--model_name_or_path begins a new run with its weights")
    return name


# ---- reading an earlier run


def evaluation_run(args: RunArguments) -> Run:
    """Make the output folder; return its run, to evaluate but not push it; without a record, one that records none."""
    args.push_to_hub = False
    folder = folder_of(args)
    folder.mkdir(parents=True, exist_ok=True)
    run = Run.read(folder) or Run(folder, {}, writes=False)
    run.writes = run.writes and args.process_index == 0
    return run


def evaluated_checkpoint(args: RunArguments, named: str | None) -> str:
    """Return the checkpoint to evaluate without training: the named one, else the finished run in the output folder.

    The run there is also evaluated if it began with the checkpoint that is named, as in the command that trained it.
    """
    folder = folder_of(args)
    run = Run.read(folder)
    if run is None and named is not None:
        return named

    if run is None or not run.finished:
        remedy = "train first, or give --model_name_or_path and another --output_dir"
        raise InputError("no finished run to evaluate", where=folder, remedy=remedy)
    names_output = named is None or folder.resolve() == Path(named).resolve()
    if not names_output and run.identity.get("weights") != weights_checksum(str(named)):
        raise InputError("the output folder contains another run", where=folder, remedy="give another --output_dir")
    return str(folder)


def use_trained_options(options: Any, trained: Mapping[str, Any] | None) -> None:
    """Set options that the command does not give to their values in training, such as columns; log each one."""
    for name, value in (trained or {}).items():
        current = getattr(options, name, None)
        is_default = current == getattr(type(options), name, None) and name not in options.from_command_line
        if hasattr(options, name) and is_default and value is not None and current != value:
            logger.info(f"{name}: {value}, as in training")
            setattr(options, name, value)


def recorded_precision(args: RunArguments) -> str | None:
    """Return the precision with which the run that is resumed began; None for a new run. Called by all ranks.

    With --overwrite_output_dir the folder may have another run.
    """
    identity = identity_in(folder_of(args))
    if identity and args.overwrite_output_dir and not may_be_same_run(identity, args):
        identity = None
    if identity is None and (named := requested_checkpoint(args)):
        identity = identity_in(Path(named))
    return rank0_value((identity or {}).get("precision"))


def may_be_same_run(identity: dict, args: RunArguments, **known: Any) -> bool:
    """Return True if an identity has this seed and batch, the options of the optimizer that are set, and `known`.

    Settings of `known` are parts of the new run's identity, of which the whole is not known before its text and model.
    """
    optimizer = {name: value for name, value in optimizers.optimizer_identity(args).items() if value is not None}
    recorded = {name: (identity.get("optimizer") or {}).get(name) for name in optimizer}
    known |= {"seed": args.seed, "global_batch": optimizers.global_batch_size(args), "optimizer": optimizer}
    return not differences({**identity, "optimizer": recorded}, json.loads(json.dumps(known)))  # lists for tuples


def identity_in(folder: Path) -> dict | None:
    """Return the identity of the run in a folder, or of the run that a checkpoint belongs to; None without one."""
    run = Run.read(folder)
    return run.identity if run else (read_json_object(folder / MANIFEST) or {}).get("identity")
