"""The model card of a pre-trained model: its corpus, settings and limits; `hub.py` writes it with the metrics."""

from pathlib import Path

from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from bert_hf.config.arguments import MUON, CorpusArguments, ExampleArguments, PreTrainingArguments
from bert_hf.data.corpus.store import Corpus
from bert_hf.training.optimization.optimizers import format_batch_size, optimizer_name
from bert_hf.training.output_folder import folder_of
from bert_hf.training.pretraining import longest_length
from bert_hf.training.publishing import hub


def pretraining_card(
    args: PreTrainingArguments,
    corpus_args: CorpusArguments,
    example_args: ExampleArguments,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    machine: str,
    command: str,
) -> hub.Card:
    """The card without its metrics.

    Args:
        machine: device, threads and precision. command: the one that started the run.
    """
    config = model.config
    checkpoint = model.name_or_path  # that the run continues; "" where it began with new weights

    return hub.Card(
        title=folder_of(args).name,
        pipeline_tag="fill-mask",
        command=command,
        machine=machine,
        source=corpus_args.corpus_source or corpus_args.dataset_name,
        license=corpus_args.corpus_license,
        language=corpus_args.language or corpus.manifest.get("text_language"),
        base_model=None if not checkpoint or Path(checkpoint).exists() else checkpoint,
        corpus={
            "documents": f"{len(corpus):,}",
            "tokens": f"{corpus.tokens:,}",
            "fingerprint": corpus.manifest["fingerprint"][:16],
            "unknown tokens": f"{corpus.manifest['unknown_share']:.4%}",
        },
        training=_settings(args, example_args, model, tokenizer),
        held_out=hub.held_out_text(
            corpus_args.validation_file, "--validation_file", "documents held out of the same text"
        ),
        notes=_notes(args, config),
        limits=untrained_positions(example_args, config, tokenizer),
    )


def _settings(args: PreTrainingArguments, example_args: ExampleArguments, model: PreTrainedModel, tokenizer) -> dict:
    """The table of settings."""
    config = model.config
    positions = f"{getattr(config, 'position_initializer', 'random')} at the start"
    beginning = {"checkpoint": model.name_or_path} if model.name_or_path else {"position embeddings": positions}
    optimizer = f"Muon ({args.muon_learning_rate}) and AdamW" if args.optim == MUON else optimizer_name(args)
    whole_words = ", whole words" if example_args.whole_word_mask else ""
    final_share = ""
    if (final := example_args.final_mlm_probability) is not None:
        final_share = f", then {final:.0%} in the last {example_args.final_mlm_fraction:.0%} of the steps"

    return {
        **beginning,
        "layers × hidden size, heads": (
            f"{config.num_hidden_layers} × {config.hidden_size}, {config.num_attention_heads}"
        ),
        "vocabulary": f"{len(tokenizer):,} WordPieces",
        "steps": args.max_steps,
        "batch": format_batch_size(args),
        "sequence length": ", then ".join(f"{length} ({share:.0%})" for length, share in example_args.lengths()),
        "optimizer": optimizer,
        "learning rate": args.learning_rate,
        "warm-up": args.warmup_steps,
        "masking": f"{example_args.mlm_probability:.0%}{final_share}{whole_words}, 80/10/10",
        "next-sentence prediction": example_args.nsp,
        "seed": args.seed,
    }


def _notes(args: PreTrainingArguments, config: PreTrainedConfig) -> list[str]:
    """Options that change the numbers."""
    notes = []
    if config.attention_probs_dropout_prob != 0.1 or config.hidden_dropout_prob != 0.1:
        notes.append(f"Dropout {config.hidden_dropout_prob} in place of the paper's 0.1 changes the numbers.")
    if args.bf16 or args.fp16:
        notes.append("Trained under 16-bit autocast, with fp32 weights.")
    return notes


def untrained_positions(
    example_args: ExampleArguments, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase
) -> list[str]:
    """A warning about positions that model and tokenizer accept and this run did not train; [] without any."""
    longest = longest_length(example_args)
    allowed = min(config.max_position_embeddings, tokenizer.model_max_length)
    if longest >= allowed:
        return []
    return [
        f"This run trained on sequences of at most {longest} tokens; the model and its tokenizer accept {allowed}. "
        f"Positions {longest + 1} to {allowed} are untrained by it: truncate to {longest} (max_length={longest}), "
        f"or train further with --max_seq_length {allowed}."
    ]
