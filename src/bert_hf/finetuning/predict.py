"""Predicts with a finished model: labels, numbers, answers, labels of words, choices, or words for [MASK].

Features are made by the head, as in training, at the length that the model was trained at.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from bert_hf.config.hardware import cpu_threads
from bert_hf.data.text.tables import Row
from bert_hf.data.text.tokenization import check_tokenizer, load_tokenizer
from bert_hf.finetuning.heads import head_of
from bert_hf.finetuning.heads.head import Head, compute_further, compute_metrics, run_network
from bert_hf.models.loading import find_checkpoint, load_network, read_safe_json


@dataclass
class Predictor:
    """A finished model and its head."""

    model: Any
    head: Head

    def __post_init__(self):
        self.head.attach(self.model)

    def __call__(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Return the new columns of each row."""
        return self.head.added_columns(*self.predictions(rows)) if rows else []

    def predictions(self, rows: Sequence[Row]) -> tuple[Any, Any]:
        """Return the rows, as the head reads them, and their predictions (see `Head.decode`)."""
        read = self.head.read(rows, "ignored")
        encoded = self.head.encode(read)
        kept, _ = self._run(encoded.features)
        return read, self.head.decode(read, encoded, kept)

    def evaluate(self, rows: Sequence[Row], further: Sequence[Any] = ()) -> tuple[dict[str, float], str]:
        """Return the metrics of labelled rows, with the `further` ones, and a text: rows, table of classes."""
        head = self.head
        read = head.read(rows)
        head.check({"test": read})
        encoded = head.encode(read)
        kept, losses = self._run(encoded.features)
        assert losses is not None
        predictions = head.decode(read, encoded, kept)
        metrics = compute_metrics(head, read, predictions, losses)
        text = f"{head.describe_rows(read)}\n{head.table(read, predictions)}".strip()
        return {**metrics, **compute_further(head, read, predictions, further)}, text

    def _run(self, features: Any) -> tuple:
        training = self.model.training
        self.model.eval()  # without dropout
        result = run_network(self.head, self.model, features, self.model.device)
        self.model.train(training)
        return result


# ---- loading


def load_predictor(where: str | Path, tokenizer: PreTrainedTokenizerBase | None = None, **options: Any) -> Predictor:
    """Load a finished model by the head that its configuration names; an option of None is as in training."""
    config = read_safe_json(find_checkpoint(where, weights=False) / "config.json")
    kind = head_of(config, where)
    model, tokenizer, _ = open_network(where, kind.auto_class, (), tokenizer)
    return Predictor(model, kind(tokenizer, options, model.config))


def open_network(
    where: str | Path, model_class: type, heads: tuple[str, ...], tokenizer: PreTrainedTokenizerBase | None = None
) -> tuple[Any, PreTrainedTokenizerBase, list[str]]:
    """Load a checkpoint by a stock class in fp32, on the accelerator where there is one, and its tokenizer.

    Returns the names of the weights that the checkpoint lacks, too; `heads` are prefixes of those that may be missing.
    """
    model, missing = load_network(model_class, find_checkpoint(where), where, heads, dtype=torch.float32)
    tokenizer = tokenizer or load_tokenizer(where)
    check_tokenizer(tokenizer, model.config.vocab_size)

    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    if device.type == "cpu":
        torch.set_num_threads(cpu_threads())
    return model.to(device).eval(), tokenizer, missing


# ---- from Python


def predict(
    model: Any, texts: Iterable[Any], tokenizer: PreTrainedTokenizerBase | None = None, **options: Any
) -> list[dict[str, Any]]:
    """Return the predictions of a finished model, one dictionary per text.

        >>> predict("runs/spam", ["You won a prize!", "See you at eight."])
        [{'label': 'spam', 'score': 0.99}, {'label': 'ham', 'score': 0.98}]

    Args:
        model: its folder or Hub id, or a stock model in memory with any of the BERT heads.
        texts: texts; pairs of texts as tuples; lists of words; or dictionaries by column, such as
            `{"question": …, "context": …}` and `{"context": …, "choices": […]}`. As in a file, sentences are one
            document, or several by `document_id`.
        tokenizer: by default the model's own.
        options: `long_texts`, `text_column`, … in place of the options of the training.

    Returns:
        `label` and `score`; `labels` and `scores` where a row may have several; `score` of a regression; `labels` of
        words, and of a text also its words and the characters of its entities; `answer` and `score`; `choice` and
        `score`; with a pre-trained model `words` and `scores`, one for each [MASK].
    """
    rows, columns = rows_of_texts(texts)
    if isinstance(model, str | Path):
        predictor = load_predictor(model, tokenizer, **columns, **options)
    else:
        config = {
            "architectures": [each.__name__ for each in type(model).__mro__],
            "trained_on": getattr(model.config, "trained_on", None),
        }
        tokenizer = tokenizer or load_tokenizer(model.name_or_path)
        head = head_of(config, "model")(tokenizer, {**columns, **options}, model.config)
        predictor = Predictor(model, head)
    return predictor(rows)


def rows_of_texts(texts: Iterable[Any]) -> tuple[list[Row], dict[str, str]]:
    """Return texts (see `predict`) as rows, and the options that name their columns."""
    texts = list(texts)
    columns = {}
    if texts and isinstance(texts[0], str):
        columns = {"text_column": "text"}
    elif texts and isinstance(texts[0], tuple):
        columns = {"text_column": "text", "text_pair_column": "text_pair"}
    return [Row(_values(text), "texts", number) for number, text in enumerate(texts, 1)], columns


def _values(text: Any) -> dict[str, Any]:
    if isinstance(text, dict):
        return text
    if isinstance(text, tuple):
        return dict(zip(("text", "text_pair"), text, strict=True))
    return {"tokens" if isinstance(text, list) else "text": text}
