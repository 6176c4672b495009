"""Checks the options of `recipes/probe.py` and its labelled rows before a network is loaded."""

from collections.abc import Iterator

from bert_hf.analysis.probe.arguments import ProbeArguments
from bert_hf.analysis.probe.data import read_tasks
from bert_hf.analysis.probe.network import check_reset
from bert_hf.config.arguments import OutputArguments
from bert_hf.data.text.input_files import expand
from bert_hf.errors import InputError
from bert_hf.preflight.checkpoints import not_checked, read_model_config
from bert_hf.preflight.options import check_output_folder
from bert_hf.training.output_folder import require_output_dir


def check_probe(probe_args: ProbeArguments, output_args: OutputArguments) -> Iterator[str]:
    """Checks options, paths, the model's shape and the rows; yields a line for each check that passes."""
    if probe_args.model_name_or_path is None:
        raise InputError("no checkpoint is named", where="--model_name_or_path", remedy="give a BERT checkpoint")

    # Options and paths
    yield f"parts: {', '.join(probe_args.chosen_parts())}"
    yield check_output_folder(
        require_output_dir(output_args.output_dir), output_args.overwrite_output_dir, "probe.json"
    )
    files = [path for option in (probe_args.train_file, probe_args.blimp) for path in option or ()]
    yield f"files: {len(expand(files)):,} of labelled rows and minimal pairs"

    # Model
    config = read_model_config(None, probe_args.model_name_or_path, probe_args.max_seq_length)
    if config is not None:
        check_reset(config, probe_args.tune_reset)
        yield "model: its shape is a BERT's"
    else:
        yield not_checked(probe_args.model_name_or_path)

    # Labelled rows
    for task in read_tasks(probe_args):
        yield f"rows: {len(task):,} of {task.name}"
