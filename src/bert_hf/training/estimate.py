"""Plans a run for the estimator from the options of `pretrain.py`: its shape, steps, batch and precision."""

import torch
from transformers import BertConfig

from bert_hf.config.arguments import (
    CorpusArguments,
    EstimateArguments,
    ExampleArguments,
    ModelArguments,
    PreTrainingArguments,
    TokenizerArguments,
)
from bert_hf.config.precision import choose_on_cpu, cpu_units
from bert_hf.data.planned_run import device_memory
from bert_hf.data.requested_corpus import is_prepared, open_prepared, tokenizer_for
from bert_hf.errors import InputError
from bert_hf.models.config_file import check_length
from bert_hf.models.cost import FILL, Plan, corpus_tokens_of_row, expected_mfu, find_device
from bert_hf.models.flops import read_config
from bert_hf.training.pretraining import longest_length


def trained_tokens(text: CorpusArguments, args: PreTrainingArguments) -> float:
    """Tokens of a prepared corpus that are trained on; 0 where --max_steps is given in place of a corpus.

    Raises:
        InputError: the length of the run is given neither by a corpus nor by steps.
    """
    if text.train_file:
        if not is_prepared(text.train_file):
            what, remedy = "no folder made by prepare.py", "make one, or give --max_steps alone"
            raise InputError(what, where=text.train_file[0], remedy=remedy)
        share = 1 if text.validation_file else 1 - text.validation_split_percentage / 100
        return open_prepared(text, text.train_file[0]).tokens * share

    if args.max_steps <= 0:
        remedy = "give it, or a folder made by prepare.py as --train_file"
        raise InputError("the length of the run is not known", where="--max_steps", remedy=remedy)
    return 0.0


def planned_shape(
    network: ModelArguments, tokens: TokenizerArguments, text: CorpusArguments, shape: ExampleArguments
) -> BertConfig:
    """The configuration of the model; nothing of it is built."""
    if network.model_name_or_path:
        config = read_config(network.model_name_or_path, dropout=network.dropout)
    else:
        known = text.train_file or tokens.tokenizer_name
        vocabulary = len(tokenizer_for(tokens, text)) if known else tokens.vocab_size
        config = read_config(network.config_name, vocabulary, network.dropout)
    check_length(config, longest_length(shape), "--max_seq_length")
    return config


def plan_run(
    config: BertConfig,
    corpus_tokens: float,
    shape: ExampleArguments,
    args: PreTrainingArguments,
    estimate_args: EstimateArguments,
) -> Plan:
    """Steps at each length, global batch, precision and device; the batch is the same on any number of devices."""
    # Steps of each phase
    fill, batch = estimate_args.fill or FILL, estimate_args.global_batch
    steps = args.max_steps
    if steps <= 0:
        row = corpus_tokens_of_row(shape.max_seq_length, fill)
        steps = max(1, round(args.num_train_epochs * corpus_tokens / row / batch))
    long_steps = round(steps * shape.long_seq_fraction) if shape.long_seq_length else 0
    phases = [(shape.max_seq_length, steps - long_steps), (shape.long_seq_length or 0, long_steps)]

    # Device and precision
    bf16 = choose_on_cpu(cpu_units(), config.hidden_size).bf16 if args.bf16 is None else args.bf16
    half = estimate_args.device != "cpu" or args.fp16 or bf16
    device = find_device(estimate_args.device, half, device_memory(torch.device("cpu")))

    return Plan(
        config=config,
        device=device,
        mfu=estimate_args.mfu or expected_mfu(config.hidden_size, device),
        phases=tuple(phase for phase in phases if phase[1]),
        global_batch=batch,
        micro_batch=args.per_device_train_batch_size,
        fill=fill,
        masked=shape.mlm_probability,
        half=half,
    )
