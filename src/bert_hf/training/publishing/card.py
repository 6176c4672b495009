"""Writes the model card of a run, `README.md`, from `card_template.md`."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from bert_hf.config.arguments import CorpusArguments, ExampleArguments
from bert_hf.config.files import write_durably
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.console import shorten_list
from bert_hf.data.examples.objectives import OBJECTIVES
from bert_hf.data.text.tokenization import backend
from bert_hf.errors import mask_secrets
from bert_hf.training.optimization.optimizers import describe_optimizer, format_batch_size
from bert_hf.training.output_folder import folder_of

if TYPE_CHECKING:
    from bert_hf.data.corpus.store import Corpus

STOCK = "A BERT that stock transformers loads, with no custom code:"
_TEMPLATE = Path(__file__).with_name("card_template.md")
_OWN = ("eval_", "test_")  # beginnings of the names of a model's own metrics
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{30,}\b")  # the shape of a token of the Hub
# Text licences that the Hub knows; it rejects a card with any other, except as `other` with a name.
_LICENCES = (
    "apache-2.0 mit bsd-3-clause cc cc0-1.0 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-4.0 cc-by-nd-4.0 "
    "cc-by-nc-sa-4.0 cc-by-nc-nd-4.0 gfdl gpl-3.0 lgpl-3.0 mpl-2.0 odc-by odbl pddl unlicense unknown other"
).split()


@dataclass
class Card:
    """The contents of a model card without its metrics. Licence, source and language only as the user gave them."""

    title: str
    pipeline_tag: str  # fill-mask, text-classification, …
    command: str
    machine: str
    corpus: dict = field(default_factory=dict)  # documents, sentences, tokens, fingerprint
    training: dict = field(default_factory=dict)  # the settings, as a table
    source: str | None = None
    license: str | None = None
    language: str | None = None
    base_model: str | None = None
    example: str = "The capital of France is [MASK]."  # of the Hub's widget; "": no widget
    introduction: str = STOCK  # of the code that loads the model
    stock: bool = True  # whether stock transformers loads it; else the Hub is told of no library and no pipeline
    usage: Callable[[str], str] | None = None  # Python code that calls a model; by default a pipeline on the example
    held_out: str = "the held-out part of the same text"  # the data of the metrics
    notes: list[str] = field(default_factory=list)  # options that change the numbers
    limits: list[str] = field(default_factory=list)  # what a user of the model has to know, one or two sentences each


# ---- writing


def write_card(folder: Path, card: Card, metrics: dict[str, float]) -> None:
    """Writes `README.md`: front matter, how to load the model, the run's metrics, how it was made.

    Metrics that are not finite numbers are left out. Tokens and passwords, which the command or a URL may contain, are
    replaced.
    """
    results = {name: value for name, value in metrics.items() if _is_result(name, value)}
    text = ModelCard.from_template(
        _front_matter(card, results),
        template_path=str(_TEMPLATE),
        card=card,
        usage=_usage(folder, card),
        metrics={name: f"{value:.4f}" for name, value in results.items()},
        settings={name: _cell(value) for name, value in card.training.items()},
        versions=f"bert_hf {version('bert-hf')}, torch {version('torch')}, transformers {version('transformers')}",
    )
    ModelCard(_without_tokens(text.content) + "\n").save(folder / "README.md")


def _front_matter(card: Card, metrics: dict[str, float]) -> ModelCardData:
    task = "masked-language-modeling" if card.pipeline_tag == "fill-mask" else card.pipeline_tag
    dataset = card.source or "not stated"
    model_metrics = {name: value for name, value in metrics.items() if name.startswith(_OWN)}  # no baselines
    results = [EvalResult(task, dataset, dataset, name, round(value, 5)) for name, value in model_metrics.items()]

    return ModelCardData(
        library_name="transformers" if card.stock else None,
        pipeline_tag=card.pipeline_tag if card.stock else None,
        language=card.language,
        **_licence(card.license),
        base_model=card.base_model,
        tags=["bert", "bert_hf"],
        model_name=card.title if model_metrics else None,  # with no metric there is no `model-index`
        eval_results=results or None,
        widget=[{"text": card.example}] if card.example else None,
    )


def _without_tokens(text: str) -> str:
    """Replaces tokens and passwords."""
    text = mask_secrets(_TOKEN.sub("(token)", text))
    if token := huggingface_hub.get_token():
        text = text.replace(token, "(token)")
    return text


def _cell(value: Any) -> str:
    """A value as the cell of a Markdown table."""
    return " ".join(str(value).replace("|", "\\|").split())


def _usage(folder: Path, card: Card) -> str:
    """Code that calls the model: the card's own, or its pipeline."""
    if card.usage:
        return card.usage(folder.name)

    model = repr(folder.name).replace("'", '"')
    example = card.example.replace("\\", " ").replace('"', "'").replace("\n", " ")
    return f"""from transformers import pipeline

pipeline("{card.pipeline_tag}", model={model})("{example}")"""


def replace_repository(folder: Path, name: str, repo_id: str) -> None:
    """Replaces the name from which the code of a card loads the model, that of the folder or of another repository."""
    card = (folder / "README.md").read_text(encoding="utf-8")
    before, fence, rest = card.partition("```python\n")
    code, end, after = rest.partition("```")
    code = code.replace(f'"{name}"', f'"{repo_id}"')
    write_durably(folder / "README.md", before + fence + code + end + after)


def held_out_text(files: list[str] | None, option: str, otherwise: str) -> str:
    """Describes the data of a card's metrics: the names of the given files, or `otherwise` the part split off."""
    if not files:
        return otherwise
    names = [Path(name.split("?")[0]).name for name in files]
    return f"the text given by {option} ({shorten_list(names)})"


def _licence(given: str | None) -> dict[str, Any]:
    """The licence given by the user, as front matter."""
    if given is None:
        return {}
    name = given.strip().lower().replace(" ", "-")
    if name in _LICENCES:
        return {"license": name}
    return {"license": "other", "license_name": re.sub(r"[^a-z0-9.]+", "-", name).strip("-")}


def _is_result(name: str, value) -> bool:
    """True for a finite metric that is not a time or a count."""
    timing = ("_runtime", "_per_second", "_samples", "_time", "flos")
    kinds = (*_OWN, "baseline_", "unigram_", "majority_")
    finite = isinstance(value, int | float) and math.isfinite(value)
    return finite and name.startswith(kinds) and not name.endswith(timing)


# ---- the card of a pre-training


def pretraining_card(
    args: PreTrainingArguments,
    corpus_args: CorpusArguments,
    example_args: ExampleArguments,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: "Corpus",
    machine: str,
    command: str,
) -> Card:
    """The card without its metrics.

    Args:
        machine: device, threads and precision. command: the one that started the run.
    """
    config = model.config
    checkpoint = model.name_or_path  # that the run continues; "" where it began with new weights

    return Card(
        title=folder_of(args).name,
        pipeline_tag="fill-mask",
        command=command,
        machine=machine,
        source=corpus_args.dataset_source or corpus_args.dataset_name,
        license=corpus_args.dataset_license,
        language=corpus_args.language or corpus.manifest.get("text_language"),
        base_model=None if not checkpoint or Path(checkpoint).exists() else checkpoint,
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
        notes=_notes(args, config),
        limits=untrained_positions(example_args, config, tokenizer),
    )


def _settings(args: PreTrainingArguments, example_args: ExampleArguments, model: PreTrainedModel, tokenizer) -> dict:
    """The table of settings."""
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
        "masking": f"{example_args.mlm_probability:.0%}{whole_words}, 80/10/10",
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
    longest = max(example_args.max_seq_length, example_args.long_seq_length or 0)
    allowed = min(config.max_position_embeddings, tokenizer.model_max_length)
    if longest >= allowed:
        return []
    return [
        f"This run trained on sequences of at most {longest} tokens; the model and its tokenizer accept {allowed}. "
        f"Positions {longest + 1} to {allowed} are untrained by it: truncate to {longest} (max_length={longest}), "
        f"or train further with --max_seq_length {allowed}."
    ]
