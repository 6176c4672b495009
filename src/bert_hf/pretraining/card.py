"""The model card of a pre-training run, without its metrics."""

from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from bert_hf.config.arguments import CorpusArguments, ExampleArguments
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.data.corpus.store import Corpus
from bert_hf.data.examples.objectives import OBJECTIVES
from bert_hf.data.text.tokenization import backend
from bert_hf.training.command import command_line
from bert_hf.training.optimization.optimizers import describe_optimizer, format_batch_size
from bert_hf.training.output_folder import folder_of
from bert_hf.training.publishing.card import Card, held_out_text, hub_id
from bert_hf.training.run import describe_machine


def pretraining_card(
    args: PreTrainingArguments,
    corpus_args: CorpusArguments,
    example_args: ExampleArguments,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
) -> Card:
    """Return the card without its metrics."""
    named = corpus_args.train_file or corpus_args.dataset_name
    return Card(
        title=folder_of(args).name,
        pipeline_tag="fill-mask",
        command=command_line(),
        machine=describe_machine(args),
        dataset=hub_id(corpus_args.dataset_name),
        source=corpus_args.dataset_source or (None if named else "English documentation of installed Python packages"),
        dataset_license=corpus_args.dataset_license,
        model_license=corpus_args.model_license,
        language=corpus_args.language or corpus.manifest.get("text_language"),
        base_model=hub_id(model.name_or_path),  # "" where the run began with new weights
        corpus={
            "documents": f"{len(corpus):,}",
            "tokens": f"{corpus.tokens:,}",
            "fingerprint": corpus.manifest["fingerprint"][:16],
            "unknown tokens": f"{corpus.manifest['unknown_share']:.4%}",
        },
        training=_settings(args, example_args, model, tokenizer),
        held_out=held_out_text(
            corpus_args.validation_file, "--validation_file", "documents held out of the same text"
        ),
        limits=untrained_positions(example_args, model.config, tokenizer),
    )


def _settings(args: PreTrainingArguments, example_args: ExampleArguments, model: PreTrainedModel, tokenizer) -> dict:
    config = model.config
    positions = f"{getattr(config, 'position_initializer', 'random')} at the start"
    beginning = {"checkpoint": model.name_or_path} if model.name_or_path else {"position embeddings": positions}
    whole_words = ", whole words" if example_args.whole_word_mask else ""

    return {
        **beginning,
        "layers × hidden size, heads": (
            f"{config.num_hidden_layers} × {config.hidden_size}, {config.num_attention_heads}"
        ),
        "vocabulary": f"{len(tokenizer):,} tokens ({type(backend(tokenizer).model).__name__})",
        "steps": args.max_steps,
        "batch": format_batch_size(args),
        "sequence length": ", then ".join(f"{length} ({share:.0%})" for length, share in example_args.lengths()),
        "optimizer": describe_optimizer(args),
        "learning rate": args.learning_rate,
        "warm-up": args.warmup_steps,
        "objective": OBJECTIVES[example_args.nsp].title,
        "dropout": config.hidden_dropout_prob,
        "masking": f"{example_args.mlm_probability:.0%}{whole_words}, 80/10/10",
        "seed": args.seed,
    }


def untrained_positions(
    example_args: ExampleArguments, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase
) -> list[str]:
    """Return a warning about positions that model and tokenizer accept and this run did not train; [] without any."""
    longest = example_args.longest
    allowed = min(config.max_position_embeddings, tokenizer.model_max_length)
    if longest >= allowed:
        return []
    return [
        f"Positions {longest + 1} to {allowed} are untrained by this run: truncate to {longest} "
        f"(max_length={longest}), or train further with --max_seq_length {allowed}."
    ]
