"""Reads rows of files for a finished model, and writes its predictions for them in bounded memory, resumable.

Rows are predicted in windows of some thousand, one line of a journal per window, in a folder beside the output. At the
end rows and predictions are joined into the output, which gets its name when it is whole. The same command continues
the journal: windows, and the batches in them, depend on the rows alone, so the bytes are the same.
"""

import csv
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from bert_hf.config.files import check_writable, flush_to_disk
from bert_hf.config.parser import option
from bert_hf.console import logger, progress, shorten_list
from bert_hf.data.text.input_files import expand, kind_of
from bert_hf.data.text.readers import read_lines
from bert_hf.data.text.sources import TextFile
from bert_hf.data.text.tables import Row, read_rows
from bert_hf.data.text.tokenization import tokenizer_checksum
from bert_hf.errors import InputError
from bert_hf.finetuning.prediction import Predictor, TextPredictor, WordPredictor, load_predictor
from bert_hf.finetuning.squad.files import json_rows
from bert_hf.finetuning.tagging.conll import read_tagged
from bert_hf.training.output_folder import release_lock, take_lock
from bert_hf.training.run_fingerprint import weights_checksum

WINDOW = 4_096  # rows that are sorted by length and predicted together
_CONLL = (".conll", ".bio", ".iob")

Rows = Iterator[dict[str, Any]]


# ---- options


@dataclass
class PredictorArguments:
    """Which finished model reads which rows: options of `predict.py` and `evaluate.py`."""

    model_name_or_path: str | None = option(None, "Model (folder or Hub id): fine-tuned, or pre-trained for [MASK].")
    test_file: list[str] | None = option(None, "Rows: .txt .csv .tsv .jsonl .parquet, SQuAD's JSON, .conll.")
    text_column: str | None = option(None, "Column of the text. Default: that of the training, or a usual name.")
    text_pair_column: str | None = option(None, "Column of the second text of a pair.")
    long_texts: str | None = option(
        None, "Part of a longer text that is read. Default: as in training.", ("head", "head_tail", "windows")
    )
    encoding: str | None = option(None, "Encoding of the files, if it is not UTF-8: latin-1, cp1252, …")
    separator: str | None = option(
        None, "Between the fields of .csv and .tsv files, `tab` or a character. Default: found in each file."
    )

    def check(self) -> Iterator[str]:
        """Checks that the files exist."""
        yield f"files: {shorten_list(expand(self.test_file or []))}"

    def load(self) -> Predictor:
        """The model, with the options that replace what its training recorded."""
        names = ("text_column", "text_pair_column", "long_texts")
        return load_predictor(str(self.model_name_or_path), **{name: getattr(self, name) for name in names})


@dataclass
class PredictionArguments(PredictorArguments):
    """Options of `predict.py`."""

    output: str | None = option(None, "File of the predictions: .jsonl, .csv or .parquet; it is replaced.")


def check_prediction(prediction_args: PredictionArguments) -> Iterator[str]:
    """Checks the names of files before a model is loaded."""
    yield from prediction_args.check()
    output = Path(str(prediction_args.output))
    if output.suffix not in _WRITERS:
        raise InputError(f"unknown kind {output.suffix!r}", where=output, remedy=f"use {', '.join(_WRITERS)}")
    if os.path.realpath(output) in map(os.path.realpath, expand(prediction_args.test_file or [])):
        raise InputError("the output is one of the inputs", where=output, remedy="give another --output")
    yield check_writable(str(output.parent))


def read_inputs(args: PredictorArguments) -> Iterator[str]:
    """Loads the model and reads all rows, as the command does at its start; for `--check`."""
    predictor = args.load()
    yield f"model: {type(predictor.model).__name__}, inputs of at most {predictor.length:,} tokens"
    yield f"rows: {sum(1 for _ in rows_of(predictor, args)):,}"


# ---- rows


def rows_of(predictor: Predictor, prediction_args: PredictorArguments) -> Iterator[Row]:
    """The rows of the files, one at a time.

    A line of a .txt without tabs is a text. Where words are tagged, a file whose first line ends with one of the
    model's labels is a CoNLL file, whatever its name.
    """
    encoding = prediction_args.encoding
    for path in expand(prediction_args.test_file or []):
        kind = kind_of(path)
        if kind == ".json":
            yield from json_rows(path)
        elif isinstance(predictor, WordPredictor) and _is_conll(path, kind, predictor.names):
            rows = read_tagged([path])
            for words, tags, document, lines in zip(rows.words, rows.tags, rows.documents, rows.lines, strict=True):
                yield Row({"tokens": words, "tags": tags}, f"{path}, document {document}", lines[0])
        elif kind in (".txt", "") and "\t" not in next((line for _, line in read_lines(path, encoding)), ""):
            yield from (Row({"text": line}, path, number) for number, line in read_lines(path, encoding))
        else:
            yield from read_rows(
                path, encoding, class_names=False, separator=prediction_args.separator
            )  # a row keeps its values


def _is_conll(path: str, kind: str, labels: Sequence[str]) -> bool:
    if kind in _CONLL or kind not in (".txt", ".tsv", ""):
        return kind in _CONLL
    lines = (line for _, line in read_lines(path) if line.strip() and not line.startswith(("-DOCSTART-", "# ")))
    columns = next(lines, "").split()
    return len(columns) > 1 and columns[-1] in labels


def _windows(rows: Iterable) -> Iterator[list]:
    iterator = iter(rows)
    while window := list(itertools.islice(iterator, WINDOW)):
        yield window


def _with_context(windows: Iterator[list], context: int) -> Iterator[tuple[list, slice]]:
    """Each window with up to `context` rows before and after it, and its place among them."""
    before: list = []
    for window, following in itertools.pairwise(itertools.chain(windows, [[]])):
        yield [*before, *window, *following[:context]], slice(len(before), len(before) + len(window))
        before = window[max(0, len(window) - context) :]


# ---- output


def _write_lines(path: Path, rows: Callable[[], Rows]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows())


def _write_csv(path: Path, rows: Callable[[], Rows]) -> None:
    names = dict.fromkeys(name for row in rows() for name in row)
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(names), lineterminator="\n")
        writer.writeheader()
        for row in rows():
            writer.writerow({name: _cell(value) for name, value in row.items()})


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else value


def _write_parquet(path: Path, rows: Callable[[], Rows]) -> None:
    """The types are those of all rows: a column may be null at first, or turn from whole numbers to others."""
    try:
        schema = pa.unify_schemas(list(map(_schema, _windows(rows()))), promote_options="permissive")
        with pq.ParquetWriter(path, schema) as writer:
            for window in _windows(rows()):
                writer.write_table(pa.Table.from_pylist(window, schema=schema))
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        remedy = "write .jsonl, where each row has its own columns"
        raise InputError(f"types differ: {error}", where="--output", remedy=remedy) from None


def _schema(rows: list[dict[str, Any]]) -> pa.Schema:
    """The columns of all rows, in the order in which they appear; Arrow itself takes those of the first row."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.schema([(name, pa.array([row.get(name) for row in rows]).type) for name in names])


_WRITERS = {".jsonl": _write_lines, ".csv": _write_csv, ".parquet": _write_parquet}


# ---- the whole


def write_predictions(predictor: Predictor, prediction_args: PredictionArguments) -> int:
    """Predicts what is not predicted yet, and writes the output; returns the number of all rows."""
    output = Path(str(prediction_args.output))
    folder = output.with_name(f".{output.name}.unfinished")
    names, total = _added_columns(predictor, prediction_args)
    if output.suffix == ".parquet":  # types that differ are found before the work
        _write_parquet(Path(os.devnull), lambda: (row.values for row in rows_of(predictor, prediction_args)))

    folder.mkdir(exist_ok=True)
    take_lock(folder)
    with open(folder / "predictions.jsonl", "a+b") as journal:
        whole = _continue(journal, _request(predictor, prediction_args))
        rows = progress(rows_of(predictor, prediction_args), "predicting", "rows", total)
        for window, place in itertools.islice(_with_context(_windows(rows), predictor.context), whole, None):
            journal.write(json.dumps(predictor(window)[place]).encode() + b"\n")
            journal.flush()
            os.fsync(journal.fileno())

    def joined() -> Rows:
        with open(folder / "predictions.jsonl", encoding="utf-8") as lines:
            decoder = json.JSONDecoder(parse_float=lambda number: float(f"{float(number):.7g}"))  # as float32 has
            windows = map(decoder.decode, itertools.islice(lines, 1, None))
            predicted = itertools.chain.from_iterable(windows)
            for row, own in zip(rows_of(predictor, prediction_args), predicted, strict=True):
                yield row.values | {names[name]: value for name, value in own.items()}

    _WRITERS[output.suffix](folder / output.name, joined)
    flush_to_disk(folder / output.name)
    os.replace(folder / output.name, output)
    release_lock()
    shutil.rmtree(folder)
    return total


def _added_columns(predictor: Predictor, prediction_args: PredictionArguments) -> tuple[dict[str, str], int]:
    """The name in the output of each column that is added, and the number of rows: reads all, for errors in them."""
    columns: set[str] = set()
    total = empty = 0
    for row in rows_of(predictor, prediction_args):
        columns |= row.values.keys()
        total += 1
        empty += isinstance(predictor, TextPredictor) and not predictor.read(row)[0]

    names = {name: name for name in predictor.columns}
    if (main := predictor.columns[0]) in columns:
        names[main] = "prediction"
    where = (prediction_args.test_file or [""])[0]
    if not total:
        raise InputError("no rows in it", where=where, remedy="give a file with rows")
    if taken := columns & set(names.values()):
        raise InputError(f"the rows have a column {min(taken)!r} already", where=where, remedy="rename it")
    if empty:
        logger.info(f"! {empty:,} of {total:,} rows have no text; what is predicted for them means nothing")
    return names, total


def _request(predictor: Predictor, prediction_args: PredictionArguments) -> bytes:
    """What decides about the predictions, as one line: model, rows and options."""
    files = expand(prediction_args.test_file or [])
    request = {
        "weights": weights_checksum(str(prediction_args.model_name_or_path)),
        "tokenizer": tokenizer_checksum(predictor.tokenizer)[:16],
        "config": predictor.model.config.to_json_string(),
        "settings": {**predictor.settings, "length": predictor.length, "encoding": prediction_args.encoding},
        "device": predictor.model.device.type,
        "window": WINDOW,
        "files": [[path, TextFile(path).checksum()] for path in files],
    }
    return json.dumps(request).encode() + b"\n"


def _continue(journal: BinaryIO, request: bytes) -> int:
    """The number of whole windows in a journal; removes what follows them, and all windows of another request."""
    journal.seek(0)
    if journal.readline() != request:
        journal.truncate(0)
        journal.write(request)
        return 0

    sizes = [len(line) for line in journal if line.endswith(b"\n")]
    journal.truncate(len(request) + sum(sizes))
    return len(sizes)
