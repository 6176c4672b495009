"""Checks of training options, of the machine, and of the folder that a run writes."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DynamoBackend
from huggingface_hub import get_token
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from torch.utils.checkpoint import checkpoint
from transformers import BertConfig, TrainingArguments
from transformers.integrations.integration_utils import get_available_reporting_integrations

from bert_hf.config.arguments import FineTuningArguments
from bert_hf.config.files import check_writable, read_input_text
from bert_hf.config.hardware import free_disk
from bert_hf.config.training_options import check_options, defaults_of
from bert_hf.errors import InputError, check_known
from bert_hf.models.flops import parameter_count
from bert_hf.training.optimization.optimizers import check_optimizer, option_text
from bert_hf.training.optimization.schedules import BY_EVALUATION, check_schedule
from bert_hf.training.output_folder import RUN_RECORD, refuse_foreign_files


def check_machine(args, metrics: tuple[str, ...]) -> Iterator[str]:
    """Refuses precisions, metrics, checkpoints, trackers and repositories that do not exist.

    Args:
        metrics: names of the metrics of an evaluation.
    """
    # Precision
    if args.bf16 and args.fp16:
        raise InputError("--bf16 and --fp16 exclude each other", where="--fp16", remedy="choose one")
    if args.fp16 and (args.use_cpu or not torch.accelerator.is_available()):
        raise InputError("a CPU does not train in fp16", where="--fp16", remedy="leave it out, or give --bf16 true")

    # Metrics, checkpoint
    best = args.metric_for_best_model
    if best is not None:
        check_known(best.removeprefix("eval_"), metrics, f"no metric {best!r}", "--metric_for_best_model")
    if args.resume_from_checkpoint and args.resume_from_checkpoint.lower() != "true":
        folder = Path(args.resume_from_checkpoint)
        if not folder.is_dir():
            raise InputError("no such checkpoint", where=folder, remedy="give a folder checkpoint-N, or leave it out")

    # Trackers, Hub
    known = {*get_available_reporting_integrations(), "all", "none"}
    for tracker in [args.report_to] if isinstance(args.report_to, str) else args.report_to or []:
        if tracker not in known:
            remedy = f"install it, or use one of: {', '.join(sorted(known))}"
            raise InputError(f"no tracker {tracker!r} is installed", where="--report_to", remedy=remedy)
    if args.push_to_hub:
        yield _check_push(args.hub_model_id or Path(args.output_dir).name)


def _check_push(repo_id: str) -> str:
    try:
        validate_repo_id(repo_id)
    except HFValidationError:
        remedy = "give YOU/NAME of letters, digits, '-', '_' and '.'"
        raise InputError(f"{repo_id!r} is no name of a repository", where="--hub_model_id", remedy=remedy) from None
    if get_token() is None:
        remedy = "set HF_TOKEN or `hf auth login`"
        raise InputError("you are not logged in to the Hub", where="--push_to_hub", remedy=remedy)
    return f"push: to {repo_id}"


def check_training_options(args, kind: type[TrainingArguments], by: frozenset[str]) -> str:
    """Refuses training options that do not work, and combinations of them that contradict each other."""
    parsed = {name: _json(name, getattr(args, name)) for name in TrainingArguments._VALID_DICT_FIELDS}
    defaults = defaults_of(kind)
    line = check_options(args, defaults, by)
    check_optimizer(args, defaults)
    check_schedule(args, parsed["lr_scheduler_kwargs"])
    _check_evaluations(args, evaluates=issubclass(kind, FineTuningArguments))
    _check_compiling(args)
    _check_activation_checkpointing(parsed["gradient_checkpointing_kwargs"])
    return line


def _check_evaluations(args, evaluates: bool) -> None:
    """Refuses options that need evaluations during training where there are none, or where they are not saved.

    Args:
        evaluates: the run is evaluated and saved by default, and keeps the best weights.
    """
    at_checkpoints = evaluates and args.eval_steps is None
    steps = args.save_steps if at_checkpoints else args.eval_steps
    evaluation = args.eval_strategy or ("steps" if steps is not None else "epoch" if evaluates else "no")
    saving = args.save_strategy or (evaluation if evaluates else "no" if args.save_steps is None else "steps")
    needing = {
        "load_best_model_at_end": bool(args.load_best_model_at_end),
        "save_strategy": saving == "best",
        "lr_scheduler_type": option_text(args.lr_scheduler_type) in BY_EVALUATION,
    }
    for name, needs in needing.items():
        if needs and evaluation == "no":
            what, remedy = "the run is not evaluated while it trains", "give --eval_steps too, or leave it out"
            raise InputError(what, where=f"--{name}", remedy=remedy)

    if saving == "best" and args.metric_for_best_model is None and not args.load_best_model_at_end:
        what, remedy = "no metric says which weights are the best", "give --metric_for_best_model too"
        raise InputError(what, where="--save_strategy", remedy=remedy)
    if args.load_best_model_at_end or (args.load_best_model_at_end is None and saving == evaluation != "no"):
        _check_best_weights(args, evaluation, saving)


def _check_best_weights(args, evaluation: str, saving: str) -> None:
    """Refuses to keep the best weights where those that are evaluated are not saved."""
    if saving not in (evaluation, "best"):
        what = f"weights are evaluated with --eval_strategy {evaluation} and saved with --save_strategy {saving}"
        raise InputError(what, where="--load_best_model_at_end", remedy=f"give --save_strategy {evaluation}, or best")

    if saving == "steps" and args.save_steps is not None and args.eval_steps is not None:
        multiple = args.save_steps / args.eval_steps
        if abs(multiple - round(multiple)) > 1e-6 or (args.save_steps < 1) != (args.eval_steps < 1):
            what = f"to keep the best weights, it must be a multiple of --eval_steps {args.eval_steps:g}"
            remedy = "give one, or --load_best_model_at_end false"
            raise InputError(what, where="--save_steps", remedy=remedy)


def _check_compiling(args) -> None:
    """Refuses a backend and a mode of torch.compile that do not exist."""
    if backend := args.torch_compile_backend:
        known = [each.value.lower() for each in DynamoBackend if each is not DynamoBackend.NO]
        check_known(backend.lower(), known, f"no backend {backend!r}", "--torch_compile_backend")
    if mode := args.torch_compile_mode:
        from torch._inductor import list_mode_options  # takes seconds to import

        check_known(mode, list_mode_options(), f"no mode {mode!r}", "--torch_compile_mode")


def _check_activation_checkpointing(kwargs: dict | None) -> None:
    """Refuses arguments that `torch.utils.checkpoint` does not take, by calling it."""
    try:
        checkpoint(torch.square, torch.ones(1, requires_grad=True), **{"use_reentrant": False, **(kwargs or {})})
    except (TypeError, ValueError):
        what = f"torch.utils.checkpoint does not take {kwargs}"
        remedy = "it takes use_reentrant, preserve_rng_state, determinism_check, debug, early_stop"
        raise InputError(what, where="--gradient_checkpointing_kwargs", remedy=remedy) from None


def _json(name: str, value) -> dict | None:
    """The value of an option that is JSON, or names a file of it."""
    if not isinstance(value, str) or not value:
        return value or None
    text = value if value.startswith("{") else read_input_text(value)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f"--{name}" if text is value else value
        raise InputError(f"not JSON: {error}", where=where, remedy='write {"key": value, …}') from None


def refuse_unused(args: Any, names: Iterable[str], what: str, remedy: str) -> None:
    """Refuses options of a dataclass that a recipe does not use, where they differ from their defaults."""
    defaults = {field.name: field.default for field in fields(args)}
    for name in names:
        if getattr(args, name) != defaults[name]:
            raise InputError(what, where=f"--{name}", remedy=remedy)


def check_output_folder(output_dir: str, overwrite: bool, known_by: str) -> str:
    """The folder of a run: new, empty, or one of ours (which holds a file `known_by`), and writable."""
    folder = Path(output_dir)
    line = check_writable(output_dir)
    if not (folder / known_by).is_file():
        refuse_foreign_files(folder, overwrite, known_by)
    return line


SAVED_A_PARAMETER = 12  # bytes: fp32 weight and both moments of Adam


def check_disk_space(config: BertConfig, args) -> Iterator[str]:
    """Checks that two checkpoints fit on the disk: the newest, and the one being written (a resumed run has one)."""
    parameters = parameter_count(config)
    yield f"model: {config.num_hidden_layers} layers × {config.hidden_size}, {parameters:,} parameters"

    # Bytes that are still to be written
    never = args.save_strategy is None and args.save_steps is None and not args.save_minutes
    if never or args.save_strategy == "no":
        need = 4 * parameters
    else:
        need = (1 if (Path(args.output_dir) / RUN_RECORD).is_file() else 2) * SAVED_A_PARAMETER * parameters

    free = free_disk(Path(args.output_dir).expanduser())
    if free < need:
        what = f"two checkpoints take {need / 1e9:,.2f} GB, and {free / 1e9:,.2f} GB are free"
        raise InputError(what, where=args.output_dir, remedy="free some space, or give another --output_dir")
    yield f"disk: {need / 1e9:,.2f} GB for checkpoints, {free / 1e9:,.2f} GB free"
