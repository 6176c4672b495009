"""What a pre-training run would cost: FLOPs, tokens, hours, memory of a device and device-hours. Nothing is trained.

python recipes/estimate.py --config configs/pretrain/bert-base-paper.yaml --device h200 --num_devices 1 8 64
"""

import sys
from pathlib import Path

import torch

from bert_hf import preflight
from bert_hf.config.arguments import (
    CorpusArguments,
    EstimateArguments,
    ExampleArguments,
    ModelArguments,
    PreTrainingArguments,
    TokenizerArguments,
    parse,
)
from bert_hf.config.precision import choose_on_cpu, cpu_units
from bert_hf.data.corpus_report import memory
from bert_hf.data.prepare import is_prepared, open_prepared, tokenizer_for
from bert_hf.errors import InputError, one_line_errors
from bert_hf.models.cost import FILL, Plan, amounts, describe, expected_mfu, find_device, memories, steps_of, times
from bert_hf.models.flops import read_config

DEFAULT = Path(__file__).parents[1] / "configs/pretrain/bert-base-paper.yaml"


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    run = (TokenizerArguments, CorpusArguments, ModelArguments, ExampleArguments, PreTrainingArguments)
    given = parse((*run, EstimateArguments), argv, str(DEFAULT), preflight.estimating)
    if given is None:  # --check
        return 0
    tokens, text, network, shape, args, asked = given

    # 1. Corpus: a prepared one says how many tokens there are; without one the steps do
    corpus, there = None, 0.0
    if text.train_file:
        if not is_prepared(text.train_file):
            what, remedy = "no folder made by prepare.py", "make one, or give --max_steps alone"
            raise InputError(what, where=text.train_file[0], remedy=remedy)
        corpus = open_prepared(text, text.train_file[0])
        there = corpus.tokens * (1 if text.validation_file else 1 - text.validation_split_percentage / 100)
    elif args.max_steps <= 0:
        remedy = "give it, or a folder made by prepare.py as --train_file"
        raise InputError("how long the run is cannot be known", where="--max_steps", remedy=remedy)

    # 2. Model: its shape alone
    if network.model_name_or_path:
        config = read_config(network.model_name_or_path, dropout=network.dropout)
    else:
        known = corpus or tokens.tokenizer_name
        vocabulary = len(tokenizer_for(tokens, text)) if known else tokens.vocab_size
        config = read_config(network.config_name, vocabulary, network.dropout)
    longest = max(shape.max_seq_length, shape.long_seq_length or 0)
    if longest > config.max_position_embeddings:
        what = f"sequence length {longest} is beyond the model's {config.max_position_embeddings} positions"
        raise InputError(what, where="--max_seq_length", remedy="lower it, or --long_seq_length")

    # 3. Run: steps at each length, and the batch, which is the same on any number of devices
    steps, fill = args.max_steps, asked.fill or FILL
    if steps <= 0:
        steps = steps_of(args.num_train_epochs, there, shape.max_seq_length, asked.global_batch, fill)
    long_steps = round(steps * shape.long_seq_fraction) if shape.long_seq_length else 0
    stretches = ((shape.max_seq_length, steps - long_steps), (shape.long_seq_length, long_steps))
    cpu = asked.device == "cpu"
    by_rule = choose_on_cpu(cpu_units(), config.hidden_size).bf16
    half = not cpu or args.fp16 or (by_rule if args.bf16 is None else args.bf16)
    plan = Plan(
        config, tuple(stretch for stretch in stretches if stretch[1]), asked.global_batch,
        args.per_device_train_batch_size, fill, shape.mlm_probability, half, cpu,
    )  # fmt: skip

    # 4. Machine
    device = find_device(asked.device, half, memory(torch.device("cpu")))
    mfu = asked.mfu or expected_mfu(config, device)

    # 5. Report
    print("An estimate, not a measurement.", *describe(plan, device, mfu), "", *amounts(plan), sep="\n")
    if there:
        print(f"{plan.passes(there):,.2f} passes over the {there:,.0f} tokens to train on")
    print("", *times(plan, device, asked.num_devices, mfu, asked.price_per_hour), sep="\n")
    print("", *memories(plan, device, asked.num_devices), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
