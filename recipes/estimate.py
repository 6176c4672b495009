"""Estimates what a pre-training run would cost: FLOPs, tokens, hours, memory of a device and device-hours.

Nothing is trained.

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
from bert_hf.models.cost import FILL, Plan, expected_mfu, find_device, report, steps_of
from bert_hf.models.flops import read_config

DEFAULT = Path(__file__).parents[1] / "configs/pretrain/bert-base-paper.yaml"


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    run = (TokenizerArguments, CorpusArguments, ModelArguments, ExampleArguments, PreTrainingArguments)
    given = parse((*run, EstimateArguments), argv, str(DEFAULT), preflight.estimating)
    if given is None:  # --check
        return 0
    tokens, text, network, shape, args, asked = given

    # 1. Corpus: a prepared one has a number of tokens; without one, --max_steps gives the length of the run
    corpus = None
    corpus_tokens = 0.0
    if text.train_file:
        if not is_prepared(text.train_file):
            what, remedy = "no folder made by prepare.py", "make one, or give --max_steps alone"
            raise InputError(what, where=text.train_file[0], remedy=remedy)
        corpus = open_prepared(text, text.train_file[0])
        share = 1 if text.validation_file else 1 - text.validation_split_percentage / 100
        corpus_tokens = corpus.tokens * share
    elif args.max_steps <= 0:
        remedy = "give it, or a folder made by prepare.py as --train_file"
        raise InputError("how long the run is cannot be known", where="--max_steps", remedy=remedy)

    # 2. Model: its configuration alone
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

    # 3. Steps of each phase
    fill = asked.fill or FILL
    steps = args.max_steps
    if steps <= 0:
        steps = steps_of(args.num_train_epochs, corpus_tokens, shape.max_seq_length, asked.global_batch, fill)
    long_steps = round(steps * shape.long_seq_fraction) if shape.long_seq_length else 0
    phases = ((shape.max_seq_length, steps - long_steps), (shape.long_seq_length, long_steps))

    # 4. Device and precision
    on_cpu = asked.device == "cpu"
    by_rule = choose_on_cpu(cpu_units(), config.hidden_size).bf16
    half = not on_cpu or args.fp16 or (by_rule if args.bf16 is None else args.bf16)
    device = find_device(asked.device, half, memory(torch.device("cpu")))

    # 5. Report
    plan = Plan(
        config=config,
        device=device,
        mfu=asked.mfu or expected_mfu(config, device),
        phases=tuple(phase for phase in phases if phase[1]),
        global_batch=asked.global_batch,
        micro_batch=args.per_device_train_batch_size,
        fill=fill,
        masked=shape.mlm_probability,
        half=half,
    )
    print("An estimate, not a measurement.")
    print(*report(plan, asked.num_devices, asked.price_per_hour, corpus_tokens), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
