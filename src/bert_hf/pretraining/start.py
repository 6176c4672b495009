"""Checks the options of a pre-training before its text is prepared, and identifies the run."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from transformers import BertConfig, PreTrainedTokenizerBase

from bert_hf.config.arguments import CorpusArguments, ExampleArguments, ModelArguments, TokenizerArguments
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.data.corpus.requested_corpus import check_train_and_held_out_text
from bert_hf.data.corpus.store import Corpus
from bert_hf.data.examples.objectives import OBJECTIVES
from bert_hf.data.text.tokenization import check_tokenizer, load_tokenizer, tokenizer_checksum
from bert_hf.errors import InputError
from bert_hf.models.loading import check_positions, find_checkpoint
from bert_hf.pretraining.model import planned_config
from bert_hf.training.identity import selection_identity, weights_checksum
from bert_hf.training.optimization.optimizers import steps_identity
from bert_hf.training.run import check_run, evaluated_checkpoint, identity_in, use_trained_options

PRETRAINING_ARGUMENTS = (TokenizerArguments, CorpusArguments, ModelArguments, ExampleArguments, PreTrainingArguments)


def check_pretraining(
    tokenizer_args: TokenizerArguments,
    corpus_args: CorpusArguments,
    model_args: ModelArguments,
    example_args: ExampleArguments,
    args: PreTrainingArguments,
) -> Iterator[str]:
    """Check the options of `pretrain.py` before its text is prepared, and yield lines on them for `--check`.

    Without training, set the checkpoint to evaluate and the options of examples that it was trained with.
    """
    if not args.do_train:
        model_args.model_name_or_path = evaluated_checkpoint(args, model_args.model_name_or_path)
        identity = identity_in(Path(model_args.model_name_or_path)) or {}
        use_trained_options(example_args, identity.get("examples"))
    yield from check_run(args, OBJECTIVES[example_args.nsp].metric_names)
    yield from check_train_and_held_out_text(corpus_args)

    checkpoint = model_args.model_name_or_path
    if checkpoint:
        find_checkpoint(checkpoint)  # its weights, before any text is prepared
    config = planned_config(model_args)
    if not checkpoint or not args.do_train:  # training adds positions
        where = checkpoint or model_args.config_name
        check_positions(example_args.longest_seq_length, config.max_position_embeddings, where)
    yield f"model: {config.num_hidden_layers} layers × {config.hidden_size}"

    if name := tokenizer_args.tokenizer_name or checkpoint:
        tokenizer = load_tokenizer(name, model=checkpoint, **tokenizer_args.normalization_options())
        if not args.do_train:
            check_tokenizer(tokenizer, config.vocab_size, name)
        yield f"tokenizer: {len(tokenizer):,} tokens"


def text_identity(text: tuple[Corpus, Corpus]) -> str:
    """Return the fingerprints of the (training, held-out) text, shortened and joined, for a run's identity."""
    return "+".join(part.fingerprint[:16] for part in text)


def check_held_out(corpus_args: CorpusArguments, where: str | None, text: tuple[Corpus, Corpus]) -> None:
    """Raise an `InputError` if documents split off this text may be among those that the run in `where` trained on."""
    identity = identity_in(Path(str(where)))
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
    """Return the settings that identify a pre-training run; logging, saving, workers, ranks and hub are left out."""
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
        **steps_identity(args),
        "max_hours": args.max_hours,
        "examples": asdict(example_args),
        **selection_identity(args),
    }
