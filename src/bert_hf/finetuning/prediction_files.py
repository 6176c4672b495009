"""Writes the predictions for the rows of files, in bounded memory: JSON lines, CSV or Parquet, resumable.

Rows are read in windows of some thousand. The predictions of a window are written into a part file in a folder beside
the output; at the end the parts become the output, under its name only when it is whole. The same command continues
after the last whole part: windows, and the batches in them, depend on the rows alone, so the bytes are the same.
"""

import csv
import io
import itertools
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bert_hf.config.files import check_writable, read_json_object, write_durably
from bert_hf.config.parser import option
from bert_hf.data.text.input_files import expand, kind_of
from bert_hf.data.text.readers import read_lines
from bert_hf.data.text.sources import TextFile
from bert_hf.data.text.tables import Row, read_rows
from bert_hf.data.text.tokenization import tokenizer_checksum
from bert_hf.errors import InputError
from bert_hf.finetuning.prediction import Predictor, WordPredictor
from bert_hf.finetuning.squad.files import json_rows
from bert_hf.finetuning.tagging.conll import read_tagged
from bert_hf.training.output_folder import release_lock, take_lock
from bert_hf.training.run_fingerprint import weights_checksum

WINDOW = 4_096  # rows that are sorted by length, predicted and written together
KINDS = (".jsonl", ".csv", ".parquet")
_REQUEST = "request.json"  # in the folder of the parts: what they are of
_CONLL = (".conll", ".bio", ".iob")


@dataclass
class PredictionArguments:
    """Which model predicts which rows, and where they are written."""

    model_name_or_path: str | None = option(None, "Model (folder or Hub id): fine-tuned, or pre-trained for [MASK].")
    test_file: list[str] | None = option(None, "Rows: .txt .csv .tsv .jsonl .parquet, SQuAD's JSON, .conll.")
    output: str | None = option(None, "File of the predictions: .jsonl, .csv or .parquet; it is replaced.")
    text_column: str | None = option(None, "Column of the text; by default that of the training, or a usual name.")
    text_pair_column: str | None = option(None, "Column of the second text of a pair.")
    long_texts: str | None = option(
        None, "Part of a longer text that is read; by default as in training.", ("head", "head_tail", "windows")
    )
    encoding: str | None = option(None, "Encoding of the files, if it is not UTF-8: latin-1, cp1252, …")

    def settings(self) -> dict[str, str | None]:
        """Options that replace what the training recorded."""
        return {name: getattr(self, name) for name in ("text_column", "text_pair_column", "long_texts")}


def check_prediction(prediction_args: PredictionArguments) -> Iterator[str]:
    """Checks the names of files before a model is loaded."""
    for name in ("model_name_or_path", "test_file", "output"):
        if not getattr(prediction_args, name):
            remedy = "bert-hf predict MODEL FILES --output OUT.jsonl"
            raise InputError("missing option", where=f"--{name}", remedy=remedy)

    output = Path(str(prediction_args.output))
    if output.suffix not in KINDS:
        raise InputError(f"unknown kind {output.suffix!r}", where=output, remedy=f"use {', '.join(KINDS)}")
    if output.is_dir():
        raise InputError("is a directory", where=output, remedy="name a file in it")
    files = expand(prediction_args.test_file or [])
    if os.path.realpath(output) in map(os.path.realpath, files):
        raise InputError("the output is one of the inputs", where=output, remedy="give another --output")
    yield check_writable(str(output.parent))
    yield f"rows: {', '.join(files)}"


# ---- rows


def rows_of(predictor: Predictor, files: Sequence[str], encoding: str | None = None) -> Iterator[Row]:
    """The rows of the files, one at a time.

    A line of a .txt without tabs is a text, unless words are tagged: then tables and CoNLL files are read.

    Raises:
        InputError: with file and line.
    """
    for path in expand(list(files)):
        kind = kind_of(path)
        if kind == ".json":
            yield from json_rows(path)
        elif isinstance(predictor, WordPredictor) and kind in _CONLL:
            tagged = read_tagged([path])
            for number, (words, tags) in enumerate(zip(tagged.words, tagged.tags, strict=True), 1):
                yield Row({"tokens": words, "tags": tags}, path, number)
        elif kind in (".txt", "") and "\t" not in next((line for _, line in read_lines(path, encoding)), ""):
            yield from (Row({"text": line}, path, number) for number, line in read_lines(path, encoding))
        else:
            yield from read_rows(path, encoding)


def with_predictions(row: Row, predicted: dict[str, Any]) -> dict[str, Any]:
    """The columns of a row, and those that are added; `prediction` in place of a `label` that the row has."""
    values = dict(row.values)
    for name, value in predicted.items():
        name = "prediction" if name == "label" and name in row.values else name
        if name in row.values:
            raise row.header_error(f"the rows have a column {name!r} already", "rename it")
        values[name] = value
    return values


# ---- parts


def _write_part(path: Path, rows: list[dict[str, Any]], header: list[str]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows, schema=_schema(rows)), temporary)
    elif path.suffix == ".jsonl":
        lines = (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
        temporary.write_text("".join(lines), encoding="utf-8")
    else:
        temporary.write_text(_csv_lines(rows, header), encoding="utf-8", newline="")
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _schema(rows: list[dict[str, Any]]) -> pa.Schema:
    """The columns of all rows, in the order in which they appear; Arrow itself takes those of the first row."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.schema([(name, pa.array([row.get(name) for row in rows]).type) for name in names])


def _csv_lines(rows: list[dict[str, Any]], header: list[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        if other := [name for name in row if name not in header]:
            remedy = "write .jsonl, where each row has its own columns"
            raise InputError(
                f"a row has a column {other[0]!r}, the first row has not", where="--output", remedy=remedy
            )
        writer.writerow([_cell(row.get(name)) for name in header])
    return text.getvalue()


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else value


def _join(parts: list[Path], output: Path, header: list[str]) -> None:
    """Makes the output of the parts, and gives it its name when it is whole."""
    temporary = output.with_name(f".{output.name}.tmp")
    with open(temporary, "wb") as file:
        if output.suffix == ".parquet":
            schema = pa.unify_schemas([pq.read_schema(part) for part in parts], promote_options="permissive")
            with pq.ParquetWriter(file, schema) as writer:
                for part in parts:
                    table = pq.read_table(part)
                    for name in set(schema.names) - set(table.column_names):
                        table = table.append_column(name, pa.nulls(len(table)))
                    writer.write_table(table.select(schema.names).cast(schema))
        else:
            if output.suffix == ".csv":
                names = io.StringIO()
                csv.writer(names, lineterminator="\n").writerow(header)
                file.write(names.getvalue().encode())
            for part in parts:
                with open(part, "rb") as source:
                    shutil.copyfileobj(source, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, output)


# ---- the whole


def request_of(predictor: Predictor, prediction_args: PredictionArguments) -> dict[str, Any]:
    """What decides about the bytes of the parts: model, rows and options."""
    files = expand(prediction_args.test_file or [])
    return {
        "weights": weights_checksum(str(prediction_args.model_name_or_path)),
        "tokenizer": tokenizer_checksum(predictor.tokenizer)[:16],
        "settings": {**predictor.settings, "length": predictor.length, "encoding": prediction_args.encoding},
        "device": predictor.model.device.type,
        "window": WINDOW,
        "files": [[path, TextFile(path).checksum()] for path in files],
    }


def write_predictions(predictor: Predictor, prediction_args: PredictionArguments, progress: Any) -> int:
    """Predicts what is not predicted yet, and writes the output; returns the number of all rows.

    Args:
        progress: a bar with the methods of tqdm.

    Raises:
        InputError: with file and line; another process writes the same output.
    """
    output = Path(str(prediction_args.output))
    folder = output.with_name(f".{output.name}.parts")
    request = json.loads(json.dumps(request_of(predictor, prediction_args)))
    before = read_json_object(folder / _REQUEST)
    folder.mkdir(parents=True, exist_ok=True)
    take_lock(folder)
    if before is None or before.get("request") != request:
        for part in folder.glob("part-*"):
            part.unlink()
        before = {"request": request, "header": []}

    names = (f"part-{number:06d}{output.suffix}" for number in itertools.count())
    parts = [folder / name for name in itertools.takewhile(lambda name: (folder / name).is_file(), names)]
    rows = rows_of(predictor, prediction_args.test_file or [], prediction_args.encoding)
    count = sum(1 for _ in itertools.islice(rows, len(parts) * WINDOW))
    progress.update(count)
    while window := list(itertools.islice(rows, WINDOW)):
        predicted = zip(window, predictor(window), strict=True)
        written = [with_predictions(row, own) for row, own in predicted]
        if not parts:
            before["header"] = list(written[0])
            write_durably(folder / _REQUEST, json.dumps(before) + "\n")
        parts.append(folder / f"part-{len(parts):06d}{output.suffix}")
        _write_part(parts[-1], written, before["header"])
        count += len(window)
        progress.update(len(window))

    if not parts:
        raise InputError("no rows in it", where=(prediction_args.test_file or [""])[0], remedy="give a file with rows")
    _join(parts, output, before["header"])
    release_lock()
    shutil.rmtree(folder)
    return count
