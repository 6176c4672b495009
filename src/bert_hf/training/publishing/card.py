"""Writes the model card of a run, `README.md`, from `card_template.md`."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import huggingface_hub
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from bert_hf.console import shorten_list
from bert_hf.training.log_lines import TIMES

_TEMPLATE = Path(__file__).with_name("card_template.md")
# The columns of the table of results, in order, by the beginning of a metric's name; the first that fits counts.
_COLUMNS = {
    "test": "test",
    "eval": "validation",
    "baseline_majority": "majority baseline",
    "baseline_mean": "mean baseline",
    "baseline_words": "linear model on words",
    "baseline_characters": "linear model on characters",
    "baseline": "baseline",
    "unigram": "baseline",
    "majority": "baseline",
}
_METRIC = re.compile(rf"({'|'.join(_COLUMNS)})_(.+)")
_PICTURES = {  # those that the run has drawn are shown
    "loss.png": "Loss and metrics by step, held out and in training, beside their baselines",
    "confusion.png": "Predicted classes, in percent of the rows of each class",
}
_PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "accelerate")
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{30,}\b")  # the shape of a token of the Hub


@dataclass
class Card:
    """The contents of a model card but its metrics. Licences, source and language: only if the user gave them."""

    pipeline_tag: str  # fill-mask, text-classification, …
    command: str
    machine: str
    corpus: dict = field(default_factory=dict)  # documents, sentences, tokens, fingerprint
    dataset: str | None = None  # id on the Hub
    source: str | None = None
    dataset_license: str | None = None
    model_license: str | None = None
    language: str | None = None
    base_model: str | None = None
    example: str = ""  # of the Hub's widget; "": no widget
    stock: bool = True  # whether stock transformers loads it; else the Hub is told of no library and no pipeline
    usage: Callable[[str], str] | None = None  # Python code that calls a model; by default a pipeline on the example
    held_out: str = "the held-out part of the same text"  # the data of the metrics
    limits: list[str] = field(default_factory=list)  # what a user of the model has to know, one or two sentences each


def local_name(folder: Path) -> str:
    """Return how the code of a card names the run's folder until it is pushed: the path, if relative, or its name."""
    return folder.name if folder.is_absolute() else folder.as_posix()


def write_card(folder: Path, card: Card, metrics: dict[str, float], identity: dict | None = None) -> None:
    """Write `README.md`: front matter, how to load the model, the run's metrics, how it was made.

    Metrics that are not finite numbers are left out; access tokens, which the command may contain, are replaced.
    """
    results = _finite_metrics(metrics)
    model = local_name(folder)
    card_text = ModelCard.from_template(
        _front_matter(card, results, folder.name),
        template_path=str(_TEMPLATE),
        card=card,
        title=folder.name,
        usage=card.usage(model) if card.usage else _pipeline_code(card, model),
        results=_results_table(results),
        pictures={name: title for name, title in _PICTURES.items() if (folder / name).is_file()},
        settings=_hyperparameters(identity or {}),
        minutes=metrics.get("train_runtime", 0) / 60,
        versions=[f"bert_hf {version('bert-hf')}", *(f"{name} {version(name)}" for name in _PACKAGES)],
    )
    content = _TOKEN.sub("(token)", card_text.content)
    if token := huggingface_hub.get_token():
        content = content.replace(token, "(token)")
    ModelCard(content + "\n").save(folder / "README.md")


def _hyperparameters(identity: dict) -> dict[str, str]:
    """Return the settings in an identity as name → text of a table's cell; those of a group as `GROUP: NAME`."""
    flat = {}
    for key, value in identity.items():
        if isinstance(value, dict) and value:
            flat |= {f"{key}: {name}": entry for name, entry in value.items()}
        else:
            flat[key] = value
    texts = {name: str(value).replace("|", "\\|") for name, value in flat.items() if value is not None}
    return {name: " ".join(text.split()) for name, text in texts.items()}


def _front_matter(card: Card, results: list[tuple[str, str, float]], title: str) -> ModelCardData:
    """Return the card's metadata, which the Hub reads: what the model is, and its metrics on held-out rows."""
    task = "masked-language-modeling" if card.pipeline_tag == "fill-mask" else card.pipeline_tag
    dataset = card.dataset or card.source or "not stated"  # its type and its name for the Hub
    model_results = [
        EvalResult(task, dataset, dataset, metric, round(value, 5), dataset_split=column)
        for column, metric, value in results
        if column in ("test", "validation")  # no baselines
    ]

    return ModelCardData(
        library_name="transformers" if card.stock else None,
        pipeline_tag=card.pipeline_tag if card.stock else None,
        language=card.language,
        license=card.model_license,
        base_model=card.base_model,
        datasets=[card.dataset] if card.dataset else None,
        tags=["bert", "bert_hf"],
        model_name=title if model_results else None,  # with no metric there is no `model-index`
        eval_results=model_results or None,
        widget=[{"text": card.example}] if card.example else None,
    )


def _finite_metrics(metrics: dict[str, float]) -> list[tuple[str, str, float]]:
    """Return (column of the table, metric without prefix, value) of finite metrics in `_COLUMNS` but times, counts."""
    left_out = (*TIMES, "_samples")
    results = []
    for name, value in metrics.items():
        match = _METRIC.fullmatch(name)
        if match and isinstance(value, int | float) and math.isfinite(value) and not name.endswith(left_out):
            prefix, metric = match.groups()
            results.append((_COLUMNS[prefix], metric, value))
    return results


def _results_table(results: list[tuple[str, str, float]]) -> list[list[str]]:
    """Return header and rows: one row per metric, with its value on each split and the value of each baseline."""
    rows: dict[str, dict[str, str]] = {}
    for column, metric, value in results:
        rows.setdefault(metric, {})[column] = f"{value:.4f}"

    columns = sorted({column for column, _, _ in results}, key=list(_COLUMNS.values()).index)
    body = [[metric, *(row.get(column, "") for column in columns)] for metric, row in rows.items()]
    return [["metric", *columns], *body]


def _pipeline_code(card: Card, model: str) -> str:
    """Return Python code that calls the model on the card's example, by a stock pipeline."""
    example = json.dumps(card.example, ensure_ascii=False)
    return f"""from transformers import pipeline

pipeline("{card.pipeline_tag}", model="{model}")({example})"""


def held_out_description(files: list[str] | None, option: str, otherwise: str) -> str:
    """Return the card's phrase for the data of its metrics: an option and its files; `otherwise` without files."""
    if not files:
        return otherwise
    names = [Path(name).name for name in files]
    return f"the text given by {option} ({shorten_list(names)})"


def hub_id(name: str | None) -> str | None:
    """Return `name` if it is the id of a dataset or model on the Hub; None for None or a path of this machine."""
    return None if not name or Path(name).exists() else name
