"""Builds model, collator, datasets and fingerprint of a pre-training run."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from transformers import BertConfig, PreTrainedTokenizerBase, set_seed

from bert_hf.config.arguments import CorpusArguments, ExampleArguments, ModelArguments, TokenizerArguments
from bert_hf.config.precision import precision_name
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.console import logger
from bert_hf.data.corpus.requested_corpus import check_train_and_held_out_text
from bert_hf.data.corpus.store import Corpus
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.data.examples.objectives import OBJECTIVES
from bert_hf.data.examples.samplers import Phase
from bert_hf.data.text.tokenization import check_tokenizer, id_count, load_tokenizer, tokenizer_checksum
from bert_hf.errors import InputError, first_line
from bert_hf.models.config_file import config_from_json, config_of_checkpoint
from bert_hf.models.loading import check_positions, extend_embeddings, find_checkpoint, load_network
from bert_hf.models.modeling_bert import BertForPreTraining
from bert_hf.training.checkpoints.trainer_state import layout
from bert_hf.training.distributed import agree
from bert_hf.training.optimization.optimizers import global_batch_size, optimizer_identity
from bert_hf.training.optimization.schedules import schedule_identity
from bert_hf.training.output_folder import recorded
from bert_hf.training.run_checks import check_run, evaluated_checkpoint, use_trained_options
from bert_hf.training.run_fingerprint import kept_weights, weights_checksum

PAPER_MLM_PROBABILITY = 0.15  # of the held-out examples, whatever the training uses: runs remain comparable
_OF_A_TASK = ("trained_on", "decision_threshold", "null_score_diff_threshold")  # entries of a configuration
_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")


# ---- model


def planned_config(model_args: ModelArguments) -> BertConfig:
    """The configuration of the network that is trained; its vocabulary may still be another one."""
    where = model_args.model_name_or_path
    return config_of_checkpoint(where) if where else config_from_json(model_args.config_name)


def make_model(
    model_args: ModelArguments, example_args: ExampleArguments, tokenizer: PreTrainedTokenizerBase, seed: int
) -> BertForPreTraining:
    """The network: newly initialized from a model JSON with the tokenizer's vocabulary size, or from a checkpoint."""
    set_seed(seed)
    checkpoint = model_args.model_name_or_path
    where = checkpoint or model_args.config_name
    model = _from_checkpoint(checkpoint, model_args) if checkpoint else _from_config(model_args, tokenizer)
    if checkpoint and (line := extend_embeddings(model, id_count(tokenizer), example_args.longest)):
        logger.info(f"{checkpoint}: {line}")
    check_tokenizer(tokenizer, model.config.vocab_size)
    check_positions(example_args.longest, model.config.max_position_embeddings, where)
    OBJECTIVES[example_args.nsp].check_model(model.config, where)
    return model


def _from_checkpoint(where: str, model_args: ModelArguments) -> BertForPreTraining:
    dropout = {} if model_args.dropout is None else dict.fromkeys(_DROPOUTS, model_args.dropout)
    model, new = load_network(
        BertForPreTraining,
        find_checkpoint(where),
        where,
        heads=("cls.", "bert.pooler."),
        dtype=torch.float32,
        attn_implementation=model_args.attn_implementation,
        **dropout,
    )

    for name in _OF_A_TASK:  # of a fine-tuned model: `predict` would obey them
        vars(model.config).pop(name, None)
    model.config.update({name: getattr(BertConfig(), name) for name in ("problem_type", "id2label", "label2id")})
    if new:
        logger.info(f"not in {where}, newly initialized: {', '.join(new)}")
    return model


def _from_config(model_args: ModelArguments, tokenizer: PreTrainedTokenizerBase) -> BertForPreTraining:
    config = config_from_json(model_args.config_name, len(tokenizer), model_args.dropout)
    config.update({"pad_token_id": tokenizer.pad_token_id})
    config._attn_implementation = model_args.attn_implementation
    try:
        model = BertForPreTraining(config)
    except (ImportError, ValueError) as error:  # a kernel that is not installed
        raise InputError(first_line(error), where="--attn_implementation", remedy="choose another one") from None

    if model_args.position_initializer == "sinusoidal":
        model.config.position_initializer = model_args.position_initializer  # part of the run's identity
        model.bert.embeddings.set_sinusoidal_positions(config.initializer_range)
    return model


# ---- options

PRETRAINING_ARGUMENTS = (TokenizerArguments, CorpusArguments, ModelArguments, ExampleArguments, PreTrainingArguments)


def check_pretraining(
    tokenizer_args: TokenizerArguments,
    corpus_args: CorpusArguments,
    model_args: ModelArguments,
    example_args: ExampleArguments,
    args: PreTrainingArguments,
) -> Iterator[str]:
    """The checks of `pretrain.py`, before its text is prepared. Without training, it sets what is evaluated."""
    if not args.do_train:
        model_args.model_name_or_path = evaluated_checkpoint(args, model_args.model_name_or_path)
        use_trained_options(example_args, (recorded(Path(model_args.model_name_or_path)) or {}).get("examples"))
    yield from check_run(args, OBJECTIVES[example_args.nsp].metrics)
    yield from check_train_and_held_out_text(corpus_args)

    checkpoint = model_args.model_name_or_path
    config = planned_config(model_args)
    if not checkpoint or not args.do_train:  # training adds positions
        where = checkpoint or model_args.config_name
        check_positions(example_args.longest, config.max_position_embeddings, where)
    yield f"model: {config.num_hidden_layers} layers × {config.hidden_size}"

    if name := tokenizer_args.tokenizer_name or checkpoint:
        tokenizer = load_tokenizer(name, model=checkpoint, **tokenizer_args.normalization())
        if not args.do_train:
            check_tokenizer(tokenizer, config.vocab_size, name)
        yield f"tokenizer: {len(tokenizer):,} tokens"
    agree(layout(args), "install the same versions on all hosts", args.ddp_timeout)


# ---- examples


def training_examples(
    corpus: Corpus, phases: tuple[Phase, ...], example_args: ExampleArguments, args: PreTrainingArguments
) -> PreTrainingExamples:
    """The pairs that a run trains on; those longer than `max_seq_length` in smaller pieces."""
    seed = args.seed if args.data_seed is None else args.data_seed
    return PreTrainingExamples(
        corpus, phases, seed=seed, batch_length=example_args.max_seq_length, **example_args.pairs()
    )


def held_out_examples(
    held_out: Corpus, example_args: ExampleArguments, phases: tuple[Phase, ...]
) -> tuple[PreTrainingExamples, PreTrainingExamples | None]:
    """The fixed examples that are evaluated: of `max_seq_length`, and of the longer length of the run, if it has one.

    Both have about as many tokens. A length that gets no step of the run is not evaluated.
    """
    usual = example_args.max_seq_length
    fixed = {"seed": 0, "fixed": True, "mlm_probability": PAPER_MLM_PROBABILITY, **example_args.pairs()}
    evaluation = PreTrainingExamples(held_out, (Phase(usual, None),), limit=example_args.max_eval_samples, **fixed)

    longest = phases[-1].max_seq_length
    if longest == usual:
        return evaluation, None
    limit = max(1, example_args.max_eval_samples * usual // longest)
    return evaluation, PreTrainingExamples(held_out, (Phase(longest, None),), limit=limit, **fixed)


# ---- identity


def text_identity(text: tuple[Corpus, Corpus]) -> str:
    """Of the training and held-out documents."""
    return "+".join(part.fingerprint[:16] for part in text)


def check_held_out(corpus_args: CorpusArguments, where: str | None, text: tuple[Corpus, Corpus]) -> None:
    """Checks that a run is not evaluated on documents split off text that it may have been trained on."""
    identity = recorded(Path(str(where)))
    if identity and not corpus_args.validation_file and identity.get("data") != text_identity(text):
        what = "documents would be split off text that it may have been trained on"
        raise InputError(what, where=where, remedy="pass the text and options of its training, or --validation_file")


def pretraining_identity(
    args: PreTrainingArguments,
    config: BertConfig,
    tokenizer: PreTrainedTokenizerBase,
    text: tuple[Corpus, Corpus],
    example_args: ExampleArguments,
    model_args: ModelArguments,
) -> dict:
    """Settings that identify a pre-training run; logging, saving, workers, ranks and hub are left out."""
    model_settings = {
        key: value
        for key, value in sorted(config.to_dict().items())
        if isinstance(value, int | float | str) and key not in ("transformers_version", "dtype", "_name_or_path")
    }

    checkpoint = model_args.model_name_or_path
    return {
        "model": model_settings,
        "weights": weights_checksum(checkpoint) if checkpoint else None,
        "tokenizer": tokenizer_checksum(tokenizer)[:16],
        "data": text_identity(text),
        "seed": args.seed,
        "data_seed": args.data_seed if args.data_seed != args.seed else None,
        "global_batch": global_batch_size(args),
        "optimizer": optimizer_identity(args),
        "precision": precision_name(args),
        "schedule": schedule_identity(args),
        "max_hours": args.max_hours,
        "examples": asdict(example_args),
        **kept_weights(args),
    }
