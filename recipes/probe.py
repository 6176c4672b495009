"""Measure what a checkpoint has learned: frozen features, few labels, masked words, next sentences, grammar, geometry.

python recipes/probe.py --model_name_or_path runs/pretrain-default --train_file SMSSpamCollection.tsv \
    --validation_file held-out.jsonl --blimp blimp.jsonl --output_dir runs/probe
"""

import sys

from transformers.utils import logging

from bert_hf.analysis.probe.arguments import ProbeArguments
from bert_hf.analysis.probe.checks import check_probe
from bert_hf.analysis.probe.data import read_data
from bert_hf.analysis.probe.network import open_subject
from bert_hf.analysis.probe.parts import ProbeRun
from bert_hf.analysis.probe.report import REPORT_FILES, write_report
from bert_hf.config.arguments import OutputArguments, parse
from bert_hf.errors import one_line_errors
from bert_hf.training.output_folder import claim_output_dir


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    options = parse((ProbeArguments, OutputArguments), argv, preflight=check_probe)
    if options is None:  # --check
        return 0
    probe_args, output_args = options
    folder = claim_output_dir(output_args.output_dir, output_args.overwrite_output_dir, ours=REPORT_FILES)
    logging.set_verbosity_error()  # the report lists the newly initialized heads
    logging.disable_progress_bar()

    # 1. Checkpoint and tokenizer, through stock transformers
    subject = open_subject(probe_args)

    # 2. Labelled rows, held-out text, minimal pairs
    data = read_data(probe_args, subject.tokenizer)

    # 3. Every part that has data
    found = ProbeRun(probe_args, subject, data, report=lambda line: print(line, flush=True)).run()

    # 4. JSON, table, picture
    print()
    print(write_report(found, folder), end="")
    print(f"report: {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
