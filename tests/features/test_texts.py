"""Texts are read in input order, a text a line or a row, empty ones included; faults name file and line."""

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_hf.analysis.features.texts import Columns, Text, read_all, read_texts
from bert_hf.errors import InputError


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def texts(path, **columns):
    return list(read_texts(path, Columns(**columns)))


@pytest.mark.parametrize(
    ("name", "content", "columns", "expected"),
    [
        ("a.txt", "one\n\n  three \r\nfour", {}, [Text("one"), Text(""), Text("  three "), Text("four")]),
        ("a.txt", "a ||| b\na|||b\n ||| b\n", {}, [Text("a", "b"), Text("a|||b"), Text("", "b")]),
        ("a.txt", "a ||| b ||| c\n", {}, [Text("a ||| b", "c")]),
        ("a.txt.gz", gzip.compress(b"one\ntwo\n", mtime=0), {}, [Text("one"), Text("two")]),
        ("a.jsonl", '{"n": 1, "text": "x"}\n\n{"text": null, "n": 2}\n', {}, [Text("x"), Text("")]),
        ("a.jsonl", '{"text": null, "label": "y"}\n{"text": "x", "label": "y"}\n', {}, [Text(""), Text("x")]),
        ("a.jsonl", '{"q": "x", "p": "y", "k": 7}\n', {"text": "q", "pair": "p", "id": "k"}, [Text("x", "y", "7")]),
        ("a.jsonl", '{"sentence": "x", "label": "y"}\n', {}, [Text("x")]),
        ("a.jsonl", '{"text": "\\ud800"}\n', {}, [Text("\ufffd")]),
        ("a.csv", 'k,text\n1,"a, b"\n2,"c\nd"\n3,\n', {"id": "k"}, [
            Text("a, b", None, "1"), Text("c\nd", None, "2"), Text("", None, "3"),
        ]),
        ("a.tsv", 'text\tlabel\n"a" b\t1\n', {}, [Text('"a" b')]),
        ("a.tsv", "ham\tone two\nspam\tthree\nham\t\n", {}, [Text("one two"), Text("three"), Text("")]),
        ("a.csv", "One two.\nthree\n", {}, [Text("One two."), Text("three")]),
        ("a.csv", "Name,Rest\nx,y\n", {"text": "Rest", "id": "Name"}, [Text("y", None, "x")]),
    ],
)  # fmt: skip
def test_a_text_a_line_or_row(tmp_path, name, content, columns, expected):
    assert texts(write(tmp_path, name, content), **columns) == expected


def test_rows_of_parquet_and_the_only_column_of_strings(tmp_path):
    table = pa.table({"number": [1, 2, 3], "body": [None, "x", "y"]})
    pq.write_table(table, tmp_path / "a.parquet")
    path = str(tmp_path / "a.parquet")
    assert texts(path) == [Text(""), Text("x"), Text("y")]
    assert texts(path, id="number")[2] == Text("y", None, "3")


def test_a_null_in_the_first_row_selects_no_other_column(tmp_path):
    path = write(tmp_path, "a.jsonl", '{"body": null, "label": "y"}\n{"body": "x", "label": "y"}\n')
    with pytest.raises(InputError, match="which column holds the text"):
        texts(path)


def test_files_without_any_text(tmp_path):
    paths = [write(tmp_path, name, "\n") for name in ("a.jsonl", "b.jsonl")]
    with pytest.raises(InputError, match=r"a\.jsonl: no texts in it; give files that hold text"):
        list(read_all(paths, Columns()))
    write(tmp_path, "b.jsonl", '{"text": "x"}')
    assert list(read_all(paths, Columns())) == [Text("x")]


def test_what_counts_as_empty():
    assert [Text(" \t").empty, Text("", " ").empty, Text("", "b").empty, Text("a").empty] == [True, True, False, False]


@pytest.mark.parametrize(
    ("name", "content", "columns", "line"),
    [
        ("a.txt", "x\n", {"text": "t"},
            "a.txt: plain text has no columns, and --text_column names one; leave --text_column out, or give "
            ".jsonl, .csv, .tsv or .parquet"),
        ("a.txt", b"x\n\xff\n", {}, "a.txt:2:1: byte 0xff is not UTF-8; convert the file, e.g. with iconv -t UTF-8"),
        ("a.jsonl", '{"text": "x"}\n{"Text": "y"}\n', {},
            "a.jsonl:2: no column 'text'; did you mean 'Text'? --text_column, one of: Text"),
        ("a.jsonl", '{"text": 5}\n', {},
            "a.jsonl:1: column 'text' is not text; correct the row, or name another column by --text_column"),
        ("a.jsonl", '{"text": "x", "k": null}\n', {"id": "k"},
            "a.jsonl:1: column 'k' is not text; correct the row, or name another column by --id_column"),
        ("a.jsonl", '{"a": "x", "b": "y"}\n', {},
            "a.jsonl:1: which column holds the text?; --text_column, one of: a, b"),
        ("a.jsonl", "[1]\n", {}, "a.jsonl:1: not a JSON object; write one object a line"),
        ("a.csv", "text,n\nx,1\ny\n", {}, "a.csv:3: 1 fields instead of 2; correct the row"),
        ("a.csv", 'text\n"x\n', {}, "a.csv:2: not CSV: unexpected end of data; check its quotes"),
        ("a.xls", "x", {}, "a.xls: unknown kind '.xls'; use .txt .jsonl .json .parquet .csv .tsv, also .gz or .xz"),
        ("a.parquet", "x", {}, "a.parquet: not a Parquet file: Parquet file size is 1 bytes, smaller than the "
            "minimum file footer (8 bytes); fetch it again"),
    ],
)  # fmt: skip
def test_faults_are_one_line_with_file_and_line(tmp_path, monkeypatch, name, content, columns, line):
    write(tmp_path, name, content)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as error:
        texts(name, **columns)
    assert str(error.value) == line


def test_parquet_without_the_column_names_those_it_has(tmp_path):
    pq.write_table(pa.table({"a": ["x"], "b": ["y"]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"no column .c.; .*--text_pair_column, one of: a, b"):
        texts(str(tmp_path / "a.parquet"), text="a", pair="c")
