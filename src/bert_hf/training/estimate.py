"""Plans a run for the estimator from the options of `pretrain.py`: its shape, steps, batch and precision."""

from collections.abc import Iterator

import torch
from transformers import BertConfig

from bert_hf.config.arguments import (
    CorpusArguments,
    EstimateArguments,
    ExampleArguments,
    ModelArguments,
    TokenizerArguments,
)
from bert_hf.config.hardware import device_memory
from bert_hf.config.precision import choose_on_cpu, cpu_units
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.data.corpus.requested_corpus import is_prepared, load_or_train_tokenizer, open_prepared
from bert_hf.data.examples.samplers import phases_of_run
from bert_hf.errors import InputError
from bert_hf.models.config_file import check_length, config_from_json, config_of_checkpoint
from bert_hf.models.cost import FILL, Plan, corpus_tokens_of_row, expected_mfu, find_device
from bert_hf.training.pretraining import PRETRAINING_ARGUMENTS, longest_length

ESTIMATING_ARGUMENTS = (*PRETRAINING_ARGUMENTS, EstimateArguments)


def check_estimating(tokenizer_args, corpus_args, model_args, example_args, args, estimate_args) -> Iterator[str]:
    """The checks of `estimate.py`."""
    if args.max_hours is not None:
        what, remedy = "an estimate measures no speed, by which hours become steps", "give --max_steps"
        raise InputError(what, where="--max_hours", remedy=remedy)
    trained_tokens(corpus_args, args)
    config = planned_shape(model_args, tokenizer_args, corpus_args, example_args)
    yield f"model: {config.num_hidden_layers} layers × {config.hidden_size}"


def trained_tokens(corpus_args: CorpusArguments, args: PreTrainingArguments) -> float:
    """Tokens of a prepared corpus that are trained on; 0 where --max_steps is given in place of a corpus.

    Raises:
        InputError: the length of the run is given neither by a corpus nor by steps.
    """
    if corpus_args.train_file:
        if not is_prepared(corpus_args.train_file):
            what, remedy = "no folder made by prepare.py", "make one, or give --max_steps alone"
            raise InputError(what, where=corpus_args.train_file[0], remedy=remedy)
        corpus = open_prepared(corpus_args, corpus_args.train_file[0])
        if corpus_args.validation_file:
            return corpus.tokens
        first_window = sum(corpus.manifest["shards"][shard]["tokens"] for shard in corpus.windows()[0])
        return corpus.tokens - first_window * corpus_args.validation_split_percentage / 100  # as `Corpus.split` does

    if args.max_steps <= 0:
        remedy = "give it, or a folder made by prepare.py as --train_file"
        raise InputError("the length of the run is not known", where="--max_steps", remedy=remedy)
    return 0.0


def planned_shape(
    model_args: ModelArguments,
    tokenizer_args: TokenizerArguments,
    corpus_args: CorpusArguments,
    example_args: ExampleArguments,
) -> BertConfig:
    """The configuration of the model; nothing of it is built."""
    if model_args.model_name_or_path:
        config = config_of_checkpoint(model_args.model_name_or_path, model_args.dropout)
    else:
        known = corpus_args.train_file or tokenizer_args.tokenizer_name
        vocabulary = len(load_or_train_tokenizer(tokenizer_args, corpus_args)) if known else tokenizer_args.vocab_size
        config = config_from_json(model_args.config_name, vocabulary, model_args.dropout)
    check_length(config, longest_length(example_args), "--max_seq_length")
    return config


def plan_run(
    config: BertConfig,
    corpus_tokens: float,
    example_args: ExampleArguments,
    args: PreTrainingArguments,
    estimate_args: EstimateArguments,
) -> Plan:
    """Steps at each length, global batch, precision and device; the batch is the same on any number of devices."""
    # Steps of each phase
    fill, batch = FILL, estimate_args.global_batch
    steps = args.max_steps
    if steps <= 0:
        row = corpus_tokens_of_row(example_args.max_seq_length, fill)
        steps = max(1, round(args.num_train_epochs * corpus_tokens / row / batch))
    phases = phases_of_run(example_args.lengths(), steps, global_batch=1)
    begins = [0, *(phase.end for phase in phases[:-1])]
    ends = [*begins[1:], steps]

    # Device and precision
    bf16 = choose_on_cpu(cpu_units(), config.hidden_size).bf16 if args.bf16 is None else args.bf16
    half = estimate_args.device != "cpu" or args.fp16 or bf16
    device = find_device(estimate_args.device, half, device_memory(torch.device("cpu")))

    return Plan(
        config=config,
        device=device,
        mfu=estimate_args.mfu or expected_mfu(config.hidden_size, device),
        phases=tuple(
            (phase.max_seq_length, end - begin) for phase, begin, end in zip(phases, begins, ends, strict=True)
        ),
        batch_length=example_args.max_seq_length,
        global_batch=batch,
        micro_batch=args.per_device_train_batch_size,
        fill=fill,
        masked=example_args.mlm_probability,
        half=half,
    )
