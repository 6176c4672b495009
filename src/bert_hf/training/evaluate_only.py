"""A command that evaluates a checkpoint without training: which one, with which options, in which folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_hf.config.training_arguments import RunArguments
from bert_hf.console import logger
from bert_hf.errors import InputError
from bert_hf.training.identity import weights_checksum
from bert_hf.training.output_folder import folder_of
from bert_hf.training.run import Run


def evaluation_run(args: RunArguments) -> Run:
    """Return the run in the output folder, or one that is not recorded, to evaluate without training."""
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
    is_its_own = named is None or folder.resolve() == Path(named).resolve()
    if not is_its_own and run.identity.get("weights") != weights_checksum(str(named)):
        raise InputError("the output folder contains another run", where=folder, remedy="give another --output_dir")
    return str(folder)


def use_trained_options(options: Any, trained: Mapping[str, Any] | None) -> None:
    """Set the options that are not given to their values in training: columns, lengths, stride, context, …"""
    for name, value in (trained or {}).items():
        given = getattr(options, name, None)
        is_default = given == getattr(type(options), name, None) and name not in options.from_command_line
        if hasattr(options, name) and is_default and value is not None and given != value:
            logger.info(f"{name}: {value}, as in training")
            setattr(options, name, value)
