"""Estimate the cost of a pre-training run: FLOPs, tokens, hours and device-hours.

bert-hf estimate --config bert-base-paper --device h200 --num_devices 1 8 64
bert-hf estimate --config bert-mini-cpu --device cpu
bert-hf estimate --config_name large --max_steps 1000000 --device a100-80gb

Nothing is trained. The options of `bert-hf pretrain` describe the run.
"""

import sys
from pathlib import Path

from bert_hf.config.short_help import answer_at_once

answer_at_once(__name__)  # --help, before the imports below, which take seconds

from bert_hf.analysis.estimate import ESTIMATING_ARGUMENTS, plan_run, report_lines
from bert_hf.config.parser import parse
from bert_hf.errors import one_line_errors

DEFAULT = Path(__file__).parents[1] / "configs/pretrain/bert-base-paper.yaml"


def check(*options):
    """Make the plan: that reads the model's shape."""
    plan = plan_run(*options)
    yield f"model: {plan.config.num_hidden_layers} layers × {plan.config.hidden_size}"


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    options = parse(ESTIMATING_ARGUMENTS, argv, str(DEFAULT), dry_run=check)
    *_, estimate_args = options

    # 1. Run: the model's shape, steps at each length, batch, precision, device
    plan = plan_run(*options)

    # 2. Report
    print("An estimate, not a measurement.")
    print(*report_lines(plan, estimate_args.num_devices), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
