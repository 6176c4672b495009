"""Predicts with a finished model: labels, numbers, answers, labels of words, choices, or words for [MASK].

Features are made by the head, as in training, at the length that the model was trained at. Files are read and written
in bounded memory; the output is a temporary file until it is whole: the same command begins again.
"""

import csv
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.utils import chunk_iterable
from transformers import PreTrainedTokenizerBase

from bert_hf.config.checkpoint_arguments import PredictionArguments, PredictorArguments
from bert_hf.config.files import check_writable, flush_to_disk
from bert_hf.config.hardware import cpu_threads
from bert_hf.console import logger, progress, shorten_list
from bert_hf.data.text.input_files import expand_paths
from bert_hf.data.text.tables import Row
from bert_hf.data.text.tokenization import check_tokenizer, load_tokenizer
from bert_hf.errors import InputError
from bert_hf.finetuning.heads import head_of
from bert_hf.finetuning.heads.head import Head, compute_further_metrics, compute_metrics, rows_of_files, run_network
from bert_hf.models.loading import find_checkpoint, load_network, read_safe_json

WINDOW = 4_096  # rows that are sorted by length and predicted together
_RENAMED = {"label": "prediction", "labels": "predictions"}  # columns that are added where the rows have one already


@dataclass
class Predictor:
    """A finished model and its head."""

    model: Any
    head: Head

    def __post_init__(self):
        self.head.attach(self.model)  # some heads compute their features with it

    def __call__(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Return the new columns of each row, such as `label` and `score`."""
        return self.head.added_columns(*self.rows_and_predictions(rows)) if rows else []

    def rows_and_predictions(self, rows: Sequence[Row]) -> tuple[Any, Any]:
        """Return the rows, as the head reads them, and their predictions (see `Head.decode`)."""
        unlabelled = self.head.read(rows, "ignored")  # their labels, if any
        encoded = self.head.encode(unlabelled)
        kept, _ = run_network(self.head, self.model, encoded.features)
        return unlabelled, self.head.decode(unlabelled, encoded, kept)

    def evaluate(self, rows: Sequence[Row], further: Sequence[Any] = ()) -> tuple[dict[str, float], str]:
        """Return the metrics of labelled rows, the head's and `further` ones, and a text: counts and `Head.table`."""
        head = self.head
        labelled = head.read(rows)
        head.check({"test": labelled})
        encoded = head.encode(labelled)
        kept, losses = run_network(head, self.model, encoded.features)
        assert losses is not None  # the rows have labels
        predictions = head.decode(labelled, encoded, kept)
        metrics = compute_metrics(head, labelled, predictions, losses)
        text = f"{head.describe_rows(labelled)}\n{head.table(labelled, predictions)}".strip()
        return {**metrics, **compute_further_metrics(head, labelled, predictions, further)}, text


# ---- loading


def load_predictor(where: str | Path, tokenizer: PreTrainedTokenizerBase | None = None, **options: Any) -> Predictor:
    """Load a finished model with the head that its configuration names.

    `options` are the head's, such as `max_seq_length`, `text_column` or `class_names`; None: as in the training.
    """
    config = read_safe_json(find_checkpoint(where, weights=False) / "config.json")
    head_class = head_of(config, where)
    model, tokenizer, _ = open_network(where, head_class.auto_class, (), tokenizer)
    return Predictor(model, head_class(tokenizer, options, model.config))


def open_network(
    where: str | Path, model_class: type, optional: tuple[str, ...], tokenizer: PreTrainedTokenizerBase | None = None
) -> tuple[Any, PreTrainedTokenizerBase, list[str]]:
    """Load a checkpoint by a stock class in fp32, on the accelerator, or else set the number of CPU threads.

    Returns the network, its tokenizer and the names of missing weights, which begin with one of `optional`.
    """
    model, missing = load_network(model_class, find_checkpoint(where), where, optional)
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
        class_names = [each.__name__ for each in type(model).__mro__]  # a class of one's own extends a stock one
        config = {"architectures": class_names, "trained_on": getattr(model.config, "trained_on", None)}
        tokenizer = tokenizer or load_tokenizer(model.name_or_path)
        head = head_of(config, "model")(tokenizer, {**columns, **options}, model.config)
        predictor = Predictor(model, head)
    return predictor(rows)


def rows_of_texts(texts: Iterable[Any]) -> tuple[list[Row], dict[str, str]]:
    """Return as rows the texts of any form that `predict` takes, and the options that name the columns of the rows."""
    if isinstance(texts, str | Mapping) or hasattr(texts, "columns"):  # one text, a DatasetDict, a pandas table
        raise InputError(f"{type(texts).__name__} is not a list of texts", where="texts", remedy="pass a list")
    texts = list(texts)
    columns = {}
    if texts and isinstance(texts[0], str):
        columns = {"text_column": "text"}
    elif texts and isinstance(texts[0], tuple):
        columns = {"text_column": "text", "text_pair_column": "text_pair"}
    return [Row(_columns_of(text), "texts", number) for number, text in enumerate(texts, 1)], columns


def _columns_of(text: Any) -> dict[str, Any]:
    """Return one of the `texts` of `predict` as values by column: `{"text": …}` for a string."""
    if isinstance(text, dict):
        return text
    if isinstance(text, tuple):
        return dict(zip(("text", "text_pair"), text, strict=True))
    return {"tokens" if isinstance(text, list) else "text": text}


# ---- files


def check_files(args: PredictorArguments) -> Iterator[str]:
    """Check that the files exist; yield a line for `--check`."""
    yield f"files: {shorten_list(expand_paths(args.test_file or [], folders=True))}"


def load_by_options(args: PredictorArguments) -> Predictor:
    """Load the model that a command names, with the options that replace its training's."""
    return load_predictor(str(args.model_name_or_path), **vars(args))  # the head reads those that it knows


def check_prediction(prediction_args: PredictionArguments) -> Iterator[str]:
    """Check the names of files before a model is loaded; yield lines for `--check`."""
    yield from check_files(prediction_args)
    output = Path(str(prediction_args.output))
    if output.suffix not in _WRITERS:
        raise InputError(f"unknown kind {output.suffix!r}", where=output, remedy=f"use {', '.join(_WRITERS)}")
    if os.path.realpath(output) in map(os.path.realpath, expand_paths(prediction_args.test_file or [], folders=True)):
        raise InputError("the output is one of the inputs", where=output, remedy="give another --output")
    yield check_writable(str(output.parent), "--output")


def read_inputs(args: PredictorArguments) -> Iterator[str]:
    """Load the model and read all rows, as the command does at its start; for `--check`."""
    predictor = load_by_options(args)
    yield f"model: {type(predictor.model).__name__}, inputs of at most {predictor.head.length:,} tokens"
    rows = rows_of_files(predictor.head, args.test_file or [], args.encoding)
    yield f"rows: {sum(1 for _ in rows):,}"


def predicted_windows(predictor: Predictor, rows: Iterable[Row]) -> Iterator[list[dict[str, Any]]]:
    """Yield lists of rows: all columns of each, then its predictions; at the end, log how many rows have no text."""
    # Sentences of the same document around a window are read, too: `length` at most, of one token or more each
    context = predictor.head.length if predictor.head.option("document_context") else 0
    windows = map(list, chunk_iterable(rows, WINDOW))
    for rows_with_context, in_window in _with_context(windows, context):
        window = rows_with_context[in_window]
        added = predictor(rows_with_context)[in_window]
        names = _output_names(set().union(*added), window)
        yield [
            row.values | {names[name]: rounded(value) for name, value in columns.items()}
            for row, columns in zip(window, added, strict=True)
        ]
    if empty := predictor.head.empty_rows:
        logger.info(f"! {empty:,} rows have no text; their predictions are meaningless")


def _output_names(added: set[str], rows: list[Row]) -> dict[str, str]:
    """Return the output name of each added column (see `_RENAMED`), checked not to be a column of the rows."""
    columns = {name for row in rows for name in row.values}
    names = {name: _RENAMED.get(name, name) if name in columns else name for name in added}
    if taken := columns & set(names.values()):
        raise rows[0].header_error(f"the rows have a column {min(taken)!r} already", "rename it")
    return names


def rounded(value: Any) -> Any:
    """Return numbers with the seven digits of float32."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return {name: rounded(each) for name, each in value.items()} if isinstance(value, dict) else value


def _with_context(windows: Iterator[list], context: int) -> Iterator[tuple[list, slice]]:
    """Yield each window with up to `context` rows before and after it, and the slice of them that is the window."""
    before: list = []
    for window, following in itertools.pairwise(itertools.chain(windows, [[]])):  # nothing follows the last one
        yield [*before, *window, *following[:context]], slice(len(before), len(before) + len(window))
        before = window[max(0, len(window) - context) :]


def _write_json_lines(path: Path, windows: Iterator[list[dict]]) -> int:
    """Write the rows of all windows as JSON lines; return their number."""
    count = 0
    with open(path, "w", encoding="utf-8") as file:
        for window in windows:
            file.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in window)
            count += len(window)
    return count


def _write_csv(path: Path, windows: Iterator[list[dict]]) -> int:
    """Write the rows of all windows as a CSV table; return their number. The caller removes the file `.lines`."""
    lines = path.with_suffix(".lines")  # JSON lines, first: the header has the columns of all rows, which may differ
    count = _write_json_lines(lines, windows)
    names = dict.fromkeys(name for row in _read_json_lines(lines) for name in row)
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _csv_cell(value) for name, value in row.items()} for row in _read_json_lines(lines))
    return count


def _read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with open(path, encoding="utf-8") as file:
        yield from map(json.loads, file)


def _csv_cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


_WRITERS: dict[str, Callable[[Path, Iterator[list[dict]]], int]] = {".jsonl": _write_json_lines, ".csv": _write_csv}


def write_predictions(predictor: Predictor, prediction_args: PredictionArguments) -> int:
    """Write the rows with their predictions; return their number. An output that was there is replaced at the end."""
    output = Path(str(prediction_args.output))
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    files, encoding = prediction_args.test_file or [], prediction_args.encoding
    rows = rows_of_files(predictor.head, files, encoding, class_names=False)  # the columns stay as they are
    rows = progress(rows, "predicting", "rows")
    try:
        count = _WRITERS[output.suffix](temporary, predicted_windows(predictor, rows))
        flush_to_disk(temporary)
        os.replace(temporary, output)
    finally:
        temporary.unlink(missing_ok=True)
        temporary.with_suffix(".lines").unlink(missing_ok=True)
    return count
