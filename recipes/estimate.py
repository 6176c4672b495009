"""Estimate a pre-training run: FLOPs, tokens, hours, memory of a device and device-hours. Nothing is trained.

python recipes/estimate.py --config configs/pretrain/bert-base-paper.yaml --device h200 --num_devices 1 8 64
"""

import sys
from pathlib import Path

import torch

from bert_hf.data.corpus_report import memory
from bert_hf.errors import one_line_errors
from bert_hf.models.cost import amounts, describe, expected_mfu, find_device, memories, times
from bert_hf.preflight import parse_estimating
from bert_hf.training.estimate import plan_run, planned_shape, trained_tokens

DEFAULT = Path(__file__).parents[1] / "configs/pretrain/bert-base-paper.yaml"


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    options = parse_estimating(argv, DEFAULT)
    if options is None:  # --check
        return 0
    tokens, text, network, shape, args, asked = options

    # 1. Corpus: a prepared one gives the number of tokens; without one the steps are given
    corpus_tokens = trained_tokens(text, args)

    # 2. Model: its shape alone
    config = planned_shape(network, tokens, text, shape)

    # 3. Run: steps at each length, batch, precision
    plan = plan_run(config, corpus_tokens, shape, args, asked)

    # 4. Machine
    device = find_device(asked.device, plan.half, memory(torch.device("cpu")))
    mfu = asked.mfu or expected_mfu(config, device)

    # 5. Report
    print("An estimate, not a measurement.", *describe(plan, device, mfu), "", *amounts(plan), sep="\n")
    if corpus_tokens:
        print(f"{plan.passes(corpus_tokens):,.2f} passes over the {corpus_tokens:,.0f} tokens to train on")
    print("", *times(plan, device, asked.num_devices, mfu, asked.price_per_hour), sep="\n")
    print("", *memories(plan, device, asked.num_devices), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
