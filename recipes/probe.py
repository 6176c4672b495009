"""Measure what a checkpoint has learned: masked words, next sentences, grammar.

bert-hf probe --model_name_or_path runs/mini --validation_file held-out.txt --output_dir runs/probe
bert-hf probe --model_name_or_path runs/pretrain-default --blimp blimp.jsonl --output_dir runs/probe
"""

import sys

from bert_hf.config.short_help import answer_at_once

answer_at_once(__name__)  # --help, before the imports below, which take seconds

from bert_hf.analysis.probe import REPORT_FILES, open_probed_model, run_probe
from bert_hf.config.arguments import OutputArguments
from bert_hf.config.checkpoint_arguments import ProbeArguments
from bert_hf.config.parser import parse
from bert_hf.data.text.input_files import expand_paths
from bert_hf.training.command import command
from bert_hf.training.output_folder import claim_output_dir


def check(probe_args: ProbeArguments, output_args: OutputArguments):
    """Check that the files exist; their content is read before anything is computed."""
    yield f"minimal pairs: {len(expand_paths(probe_args.blimp or [])):,} files"
    yield f"held-out text: {len(expand_paths(probe_args.validation_file or [], folders=True)):,} files"


@command
def main(argv: list[str] | None = None) -> int:
    required = ["model_name_or_path"]
    probe_args, output_args = parse((ProbeArguments, OutputArguments), argv, check=check, required=required)
    overwrite = output_args.overwrite_output_dir
    folder = claim_output_dir(output_args.output_dir, overwrite=False, ours=REPORT_FILES, resumable=overwrite)

    # 1. Checkpoint and tokenizer, through stock transformers
    probed = open_probed_model(probe_args)
    claim_output_dir(str(folder), overwrite, ours=REPORT_FILES)  # a report that is overwritten stays until here

    # 2. Every part that has data (held-out text, minimal pairs); probe.json and probe.txt
    run_probe(probe_args, probed, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
