"""Reads tables (.csv .tsv .jsonl .json .parquet, also compressed) row by row.

Pre-training and fine-tuning read tables by these rules:

separator   The one by which most lines have the same number of fields, two or more: tab, |, semicolon or comma;
            Excel's first line `sep=;` names it. Else commas in a .csv, tabs in a .tsv (or .txt).
quotes      RFC 4180. In a .tsv or .txt with tabs or |, if one of its lines breaks these rules, quotes are text.
mails       A file of mails has one row for each, whose column `text` has subject and body.
header      The first row, unless no column has a usual name and a value of the first row occurs again below it (of
            more than two columns: twice). Where it occurs again as a whole, as in joined files, it is left out.
columns     `text` and `label`, else the only column with a usual name (below), else the user has to name it.
"""

import ast
import contextlib
import csv
import io
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bert_hf.config.files import join_surrogates, parse_json
from bert_hf.console import log_once, logger, shorten_list
from bert_hf.data.text.input_files import DAMAGED, LABEL_NAMES, MAILS, TEXT_NAMES, compression, kind_of, open_bytes
from bert_hf.data.text.readers import KINDS, PIECE, read_documents, read_lines
from bert_hf.errors import InputError, did_you_mean

_JSON = (".jsonl", ".json")
_TABS = (".tsv", ".txt", "")
_DIALECT_LINES = 1000  # first lines, from which separator and header are recognised
_DIALECT_ROWS = 100  # first rows of JSON: one of them has a `text`, which the very first may leave out
_JSON_HINT = "write one JSON object per line"

_ELEMENT = r"""'[^']*'|"[^"]*"|-?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?"""
_NUMPY_LIST = re.compile(rf"\[\s*(?:(?:{_ELEMENT})\s+)+(?:{_ELEMENT})\s*\]")  # as pandas writes arrays
_NUMPY_ARRAY = re.compile(r"\barray\((\[[^\[\]]*\])(?:,\s*dtype=\w+)?\)")  # as it writes them inside objects

csv.field_size_limit(sys.maxsize)  # of the whole process; a text may have any length

_Numbered = tuple[int | None, dict[str, Any]]  # line (or number) and values of a row


class Row(NamedTuple):
    """A row of a table. Cells of .csv and .tsv files are strings as they stand in the file."""

    values: dict[str, Any]  # by column
    where: str  # its file, or its Hub dataset
    line: int | None = None  # in a Parquet file its number; None in a Hub dataset and in a JSON array
    document: str | None = None  # name of its document within the file, for a sentence of a CoNLL file

    def get(self, column: str | None) -> Any:
        """Return the cell of a column, which may have the name ""; None if there is no such column."""
        return None if column is None else self.values.get(column)

    def error(self, what: str, remedy: str) -> InputError:
        """Return an error about this row."""
        return InputError(what, where=self.where, line=self.line, remedy=remedy)

    def header_error(self, what: str, remedy: str) -> InputError:
        """Return an error about the columns of the table: at its line 1, if the row has a line."""
        return InputError(what, where=self.where, line=self.line and 1, remedy=remedy)


def read_rows(
    path: str,
    encoding: str | None = None,
    class_names: bool = True,
    *,
    separator: str | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[Row]:
    """Yield the rows of a table, one at a time.

    Args:
        encoding: of a .csv, .tsv or JSON file; None: UTF-8.
        class_names: of a Parquet file that `datasets` wrote, the names of classes in place of their numbers.
        separator: between the fields of a .csv or .tsv file, "tab" or one character; None: found in the file.
        columns: names for the columns of a .csv or .tsv file that has no header: its first row has as many fields, but
            neither one of these names nor a usual one of a text; or it has one field, which is the text.
    """
    kind = kind_of(path)
    if kind == ".parquet":
        numbered = _parquet_rows(path, class_names=class_names)
    elif kind in _JSON:
        numbered = _json_rows(path, encoding)
    elif kind in MAILS:
        numbered = enumerate(({"text": text} for text in read_documents(path)), 1)
    elif kind in (".csv", *_TABS):
        numbered = _separated_rows(path, kind, encoding, separator, columns)
    else:
        remedy = f"use {' '.join(KINDS)}, also .gz .xz .bz2 or .zst"
        raise InputError(f"unknown kind {kind!r}", where=path, remedy=remedy)
    return (Row(values, path, line) for line, values in numbered)


def read_texts(path: str, text_column: str | None) -> Iterator[str]:
    """Yield the text of each row of a table; null is skipped, in a .csv, .tsv or mail also blank text."""
    kind = kind_of(path)
    if kind == ".parquet":  # of the other columns only the first row is read
        first = next(read_rows(path, class_names=False), None)
        if first is not None:
            text_column = text_column or _choose_column_and_log(first)
            text_of(first, text_column)  # an error names all columns
            rows = (Row(values, path, number) for number, values in _parquet_rows(path, [text_column]))
            yield from row_texts(rows, text_column)
    elif kind in _JSON:
        yield from row_texts(read_rows(path), text_column)
    else:
        yield from filter(str.strip, row_texts(read_rows(path), text_column, by_type=False))  # all cells are strings


def row_texts(rows: Iterable[Row], text_column: str | None, by_type: bool = True) -> Iterator[str]:
    """Yield the text of each row, except null; without a `text_column`, `choose_column` decides by the first row."""
    for row in rows:
        text_column = text_column or _choose_column_and_log(row, by_type)
        if (text := text_of(row, text_column)) is not None:
            yield text


def _choose_column_and_log(row: Row, by_type: bool = True) -> str:
    """Return the column from `choose_column`; log it if its name is not `text` and other columns have text, too."""
    column = choose_column(row, by_type)
    others = [name for name, value in row.values.items() if name != column and isinstance(value, str) and " " in value]
    if column != TEXT_NAMES[0] and others:
        log_once(f"the text is in column {column!r}, not in {shorten_list(others)} (--text_column names another)")
    return column


def text_of(row: Row, column: str) -> str | None:
    """Return the text in a column; None for null. Any other value is an error."""
    if column not in row.values:
        remedy = f"{did_you_mean(column, row.values)}pass --text_column, one of: {', '.join(row.values)}"
        raise row.error(f"no column {column!r}", remedy)
    value = row.values[column]
    if isinstance(value, str):
        return join_surrogates(value)
    if value is None:
        return None
    if isinstance(value, dict):
        what = f"an object with {shorten_list(list(value))}"
    elif isinstance(value, list):
        what = f"a list of {len(value)}"
    else:
        what = "bytes" if isinstance(value, bytes) else f"the number {value}"
    raise row.error(f"column {column!r} holds {what}, not text", "write the text as a string in a column of its own")


def parsed_cell(value: Any) -> Any:
    """Return the list or object that a cell holds as text, as in CSV (`["a", "b"]`, `['a' 'b']`); else the cell."""
    if not (isinstance(value, str) and value[:1] + value[-1:] in ("[]", "{}")):
        return value
    if _NUMPY_LIST.fullmatch(value):
        return [ast.literal_eval(element) for element in re.findall(_ELEMENT, value)]
    text = _NUMPY_ARRAY.sub(r"\1", value) if value[0] == "{" else value  # array([1, 2]) → [1, 2]
    for parse in (ast.literal_eval, json.loads):  # null, true and false are JSON's
        with contextlib.suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return parse(text)
    return value


def without_rejected(rows: list[Row]) -> list[Row]:
    """Return the rows without those that an annotator rejected or ignored (Prodigy: `answer`); log their number."""
    answers = {str(row.values.get("answer")) for row in rows}  # a list cannot be in a set
    if not answers <= {"accept", "reject", "ignore"} or answers == {"accept"}:  # not Prodigy's, or all accepted
        return rows
    accepted = [row for row in rows if row.values.get("answer") == "accept"]
    if not accepted:
        raise rows[0].header_error("no row was accepted", "remove the column 'answer', or give accepted rows")
    logger.info(f"{rows[0].where}: {len(rows) - len(accepted):,} rows were not accepted (answer) and are left out")
    return accepted


def list_cell(value: Any) -> list | None:
    """Return the list that a cell holds, itself or as text; None: it holds something else."""
    parsed = parsed_cell(value)
    return parsed if isinstance(parsed, list) else None


def usual_column(columns: Iterable[str], names: tuple[str, ...]) -> str | None:
    """Return the column `names[0]`, else the only one with one of the names in upper or lower case; else None."""
    usual = [column for column in columns if column.lower() in names]
    if names[0] in usual:
        return names[0]
    return usual[0] if len(usual) == 1 else None


def is_index(column: str) -> bool:
    """Return whether a column is an index that pandas wrote: "" in a .csv, `__index_level_0__` in Parquet."""
    return not column.strip() or column.startswith("__index_level_")


def choose_column(row: Row, by_type: bool = True) -> str:
    """Return the column of the text by the first row: of a usual name, else (`by_type`) the only one of strings."""
    if column := usual_column(row.values, TEXT_NAMES):
        return column

    named = {name: value for name, value in row.values.items() if not is_index(name)}
    strings = [name for name, value in named.items() if isinstance(value, str | None)]  # null may be text later
    # A longer list, such as SQuAD's `paragraphs`, may hold the text
    longest_list = max((len(str(value)) for value in named.values() if isinstance(value, list)), default=0)
    if by_type and len(strings) == 1 and longest_list <= len(str(named[strings[0]])):
        return strings[0]

    remedy = f"pass --text_column, one of: {', '.join(named)}"
    if len(named) == 1:  # the name may be the first text of a file without a header
        remedy += "; or write a line with the name text above it, if it is none"
    raise row.header_error("text column not recognised", remedy)


def _separated_rows(
    path: str, kind: str, encoding: str | None, separator: str | None, columns: Sequence[str] | None
) -> Iterator[_Numbered]:
    """Yield the rows of a .csv, .tsv or .txt, and log if it has no header or repeats it (see `read_rows`)."""
    lines = read_lines(path, encoding)
    head = list(itertools.islice(lines, _DIALECT_LINES))

    sep_line = re.fullmatch('"?sep=(.)"?', head[0][1]) if head else None  # as Excel reads and some exports write it
    if sep_line:
        head[0] = (1, "")  # no row: empty lines are skipped
    delimiter = {"tab": "\t", "\\t": "\t"}.get(separator or "", separator)
    delimiter = delimiter or (sep_line[1] if sep_line else _choose_separator([line for _, line in head], kind))
    quoted = kind not in _TABS or delimiter in ",;" or _quotes_follow_rfc(path, encoding, delimiter)

    names = _names_without_header(_fields(head, path, delimiter, quoted), columns)
    rows = _fields(itertools.chain(head, lines), path, delimiter, quoted)
    header: list[str] = []
    if not names:
        line, header = next(rows, (1, []))
        names = _names_in_header(header, path, line)
    else:
        logger.info(f"{path}: no header; its first row counts, its columns are {' and '.join(names)}")

    repeated_headers = 0
    for line, fields in rows:
        if len(fields) != len(names):
            between = {"\t": "tabs", ",": "commas", ";": "semicolons"}.get(delimiter, repr(delimiter))
            what = f"{len(fields)} fields between {between} instead of {len(names)}"
            raise InputError(what, where=path, line=line, remedy="fix the row or the header, or pass --separator")
        if len(fields) > 1 and fields == header:
            repeated_headers += 1
        else:
            yield line, dict(zip(names, fields, strict=True))
    if repeated_headers:
        logger.info(f"{path}: its header comes again in {repeated_headers:,} lines, which are left out")


def _names_in_header(header: list[str], path: str, line: int) -> list[str]:
    """Return the names of the columns, "", " ", … for those without one; reject a header with a name twice."""
    names = [name.strip() for name in header]
    repeated = [name for name, count in Counter(names).items() if name and count > 1]
    if repeated:
        raise InputError(f"duplicate column {repeated[0]!r}", where=path, line=line, remedy="rename one of them")
    return [name or " " * names[:number].count("") for number, name in enumerate(names)]


def _choose_separator(lines: list[str], kind: str) -> str:
    """Return the separator by which most lines have the same number of fields, two or more; by default tab or comma.

    Of several that are equally good, the one that is rarest in prose: semicolons separate `1,3;2,0`.
    """
    chosen, largest_share = ("\t" if kind in _TABS else ","), 0.5
    for separator in "\t|;,":  # the rarest in prose first
        plain = kind in _TABS and separator in "\t|"  # quotes may be text
        rows = [line.split(separator) for line in lines] if plain else csv.reader(lines, delimiter=separator)
        row_counts: Counter[int] = Counter()  # by the number of fields
        with contextlib.suppress(csv.Error):  # reported where the rows are read
            row_counts.update(map(len, filter(None, rows)))
        most = max((count for fields, count in row_counts.items() if fields > 1), default=0)
        share = most / max(1, row_counts.total())
        if share > largest_share:
            chosen, largest_share = separator, share
    return chosen


def _names_without_header(rows: Iterator[tuple[int, list[str]]], columns: Sequence[str] | None) -> list[str]:
    """Return names for the columns of a table without a header, `columns` if they fit; [] for a table with one.

    A label occurs in many rows (of more than two columns: in three) and the name of a column in one:

        ham<TAB>Ok lar    spam<TAB>Win!    ham<TAB>Hi      → label, text
        Ok lar,ham        Win!,spam        Hi,ham          → text, label
        3,Wall St.,Oil    3,Title,News     3,Other,Text    → column 1, column 2, column 3
        v1<TAB>v2         ham<TAB>Ok lar   spam<TAB>Win!   → a header
    """
    _, first = next(rows, (1, []))
    has_names = not {*first, *map(str.lower, first)}.isdisjoint([*(columns or []), *TEXT_NAMES])
    if columns and not has_names and len(first) in (1, len(columns)):
        return list(columns) if len(first) > 1 else ["text"]

    usual = [name.lower() in (*TEXT_NAMES, *LABEL_NAMES) for name in first]
    if len(first) < 2 or all(usual) or (len(first) > 2 and any(usual)):
        return []

    repeats = [0] * len(first)  # how often the value of the first row occurs again in each column
    with contextlib.suppress(InputError):  # the last of the first lines may be inside a quoted field
        for _, fields in rows:
            for column, (value, first_value) in enumerate(zip(fields, first, strict=False)):
                repeats[column] += bool(first_value) and value == first_value

    if len(first) != 2:
        return [f"column {number}" for number in range(1, len(first) + 1)] if max(repeats) > 1 else []
    text_column = int(repeats[0] > repeats[1])
    if repeats[0] == repeats[1] or first[text_column].lower() in TEXT_NAMES:  # such as a header `spam,text`
        return []
    return ["label", "text"] if text_column == 1 else ["text", "label"]


def _quotes_follow_rfc(path: str, encoding: str | None, separator: str) -> bool:
    """Return True if the quotes in all lines follow RFC 4180: `ham<TAB>"so ""it"" is"` does, `ham<TAB>"so` does not.

    By lines, so that two lone quotes never join the rows between them. A doubled quote elsewhere proves that quotes
    are not text; then the last line may break the rules: the file was cut off.
    """
    doubled = False  # a line that keeps the rules has a doubled quote
    broken = []  # numbers of lines that break them
    number = 0
    for number, line in read_lines(path, encoding):
        if '"' in line:
            try:
                next(csv.reader([line], delimiter=separator, strict=True))
                doubled = doubled or '""' in line
            except csv.Error:
                broken.append(number)
            if len(broken) > 1:
                return False
    return not broken or (doubled and broken == [number])


def _fields(
    lines: Iterable[tuple[int, str]], path: str, separator: str, quoted: bool
) -> Iterator[tuple[int, list[str]]]:
    """Yield (first line number, fields) of each row, the header included; empty lines are skipped."""
    if not quoted:
        yield from ((number, line.split(separator)) for number, line in lines if line)
        return

    reader = csv.reader((f"{line}\n" for _, line in lines), delimiter=separator, strict=True)
    begin = 1
    try:
        for fields in reader:
            if fields:
                yield begin, fields
            begin = reader.line_num + 1
    except csv.Error as error:
        remedy = "check the quotes of the row: a quote inside a quoted field is doubled"
        raise InputError(f"not CSV: {error}", where=path, line=begin, remedy=remedy) from None


def _json_rows(path: str, encoding: str | None) -> Iterator[_Numbered]:
    """Yield the objects of JSON lines, or of a JSON array or one object around them, which is read whole."""
    lines = ((number, line) for number, line in read_lines(path, encoding) if line.strip())
    head = list(itertools.islice(lines, 2))
    begin, first = head[0] if head else (1, "")
    lines = itertools.chain(head, lines)
    if first.lstrip().startswith("[") or first.strip() == "{":  # an array, or one object over several lines
        text = "\n" * (begin - 1) + "\n".join(line for _, line in lines)  # blank lines, so that errors name the line
        items = ((None, item) for item in _rows_inside(parse_json(text, path, "fix the array of JSON objects")))
    else:
        items = ((number, parse_json(line, path, _JSON_HINT, line=number)) for number, line in lines)
        if len(head) == 1:  # perhaps one object around all rows
            items = ((number, row) for number, item in items for row in _rows_inside(item))

    beginning = list(itertools.islice(items, _DIALECT_ROWS))
    has_text = any(isinstance(item, dict) and TEXT_NAMES[0] in item for _, item in beginning)
    for number, (line, item) in enumerate(itertools.chain(beginning, items)):
        if not isinstance(item, dict):
            raise InputError("not a JSON object", where=path, line=line, remedy=_JSON_HINT)
        if number == 0 and has_text and set(TEXT_NAMES).isdisjoint(item):  # the first row decides what is read
            item[TEXT_NAMES[0]] = None
        if item and all(isinstance(value, dict) and "0" in value for value in item.values()):  # by row number
            remedy = "write rows: orient='records', lines=True with pandas"
            raise InputError("an object for each column", where=path, line=line, remedy=remedy)
        yield line, item


def _rows_inside(content: Any) -> list:
    """Return the rows of a whole JSON file: its array, or that under a usual key of its object; else [content]."""
    if isinstance(content, list):
        return content
    usual = [content.get(key) for key in ("data", "rows", "examples")] if isinstance(content, dict) else []
    return next((rows for rows in usual if isinstance(rows, list)), [content])


def _parquet_rows(path: str, columns: list[str] | None = None, class_names: bool = False) -> Iterator[_Numbered]:
    """Yield (number from 1, values) of each row, of all columns or only `columns`; `class_names`: see `read_rows`."""
    try:
        source: Any = open_bytes(path) if compression(path) else path
        if not isinstance(source, str) and not source.seekable():  # Parquet files are read from the end
            source = io.BytesIO(source.read())
        file = pq.ParquetFile(source, buffer_size=PIECE, pre_buffer=False)  # else a row group is read as a whole
        batches = (batch.to_pylist() for batch in file.iter_batches(batch_size=256, columns=columns))
        numbered = enumerate(itertools.chain.from_iterable(batches), 1)
        if class_names and b"huggingface" in (file.schema_arrow.metadata or {}):
            import datasets  # not for pre-training, whose workers need only the text

            features = datasets.Features.from_arrow_schema(file.schema_arrow)
            numbered = ((number, with_class_names(row, features)) for number, row in numbered)
        yield from numbered
    except (pa.ArrowException, UnicodeDecodeError, *DAMAGED) as error:
        what = f"not a Parquet file: {str(error).rstrip('.')}"
        raise InputError(what, where=path, remedy="download it again") from None


def with_class_names(row: dict[str, Any], features: Any) -> dict[str, Any]:
    """Return the row with names of classes for numbers, by its `datasets.Features`; -1 (unlabelled) becomes None."""
    named_row = dict(row)
    for column, feature in features.items():
        class_label = getattr(feature, "feature", feature)  # of a list: of its elements
        if names := getattr(class_label, "names", None):
            by_number = dict(enumerate(names))
            value = row[column]
            named_row[column] = list(map(by_number.get, value)) if isinstance(value, list) else by_number.get(value)
    return named_row
