"""Tables of any kind give the same rows; what separates fields, quotes or names columns is found in the content."""

import csv
import gzip
import io
import json
import lzma

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_hf.errors import InputError
from bert_hf.finetuning.labelled.datasets import read_labelled
from bert_hf.finetuning.labelled.folders import files_of_parts
from bert_hf.finetuning.labelled.separated import read_separated_rows, unquoted_rows
from bert_hf.finetuning.labelled.tables import read_table, read_text

NAMES = ["body", "kind"]
ROWS = [
    ['He said "hi, you; there"', "ham"],
    ["WIN a | prize\tnow!\nCall 09", "spam"],
    ["naïve café – ok", "ham"],
    ["it's fine", "ham"],
    ['"quoted" to the "end"', "spam"],
]
PLAIN = [[" ".join(text.replace("|", "/").split()), label] for text, label in ROWS]  # no tabs, bars, line ends


def separated(rows, header=True, **options) -> str:
    file = io.StringIO()
    csv.writer(file, **options).writerows([NAMES, *rows] if header else rows)
    return file.getvalue()


def joined(rows, separator, header=True) -> str:
    return "".join(separator.join(row) + "\n" for row in ([NAMES, *rows] if header else rows))


def parquet(columns) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def rows_of(path):
    table = read_table(str(path))
    return [list(row) for row in zip(*table.columns.values(), strict=True)]


OBJECTS = [dict(zip(NAMES, row, strict=True)) for row in ROWS]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", separated(ROWS)),
        ("a.csv", separated(ROWS, lineterminator="\n")),
        ("a.csv", separated(ROWS, delimiter=";")),
        ("a.csv", separated(ROWS, delimiter="\t")),
        ("a.csv", separated(ROWS, delimiter="|")),
        ("a.csv", separated(ROWS, quoting=csv.QUOTE_ALL)),
        ("a.csv", separated(ROWS, doublequote=False, escapechar="\\")),
        ("a.tsv", separated(ROWS, delimiter="\t")),
        ("a.tsv", separated(ROWS)),
        ("a.txt", separated(ROWS)),
        ("a.txt", separated(ROWS, delimiter=";")),
        ("a.csv", "\ufeff" + separated(ROWS)),
        ("a.csv", separated(ROWS).encode("utf-16")),
        ("a.csv", b"\xfe\xff" + separated(ROWS).encode("utf-16-be")),
        ("a.csv", separated(ROWS).encode("utf-32")),
        ("a.csv.gz", gzip.compress(separated(ROWS).encode(), mtime=0)),
        ("a.tsv.xz", lzma.compress(separated(ROWS, delimiter="\t").encode())),
        ("a.jsonl", "".join(json.dumps(row) + "\n\n" for row in OBJECTS)),
        ("a.json", "".join(json.dumps(row) + "\n" for row in OBJECTS)),
        ("a.json", json.dumps(OBJECTS)),
        ("a.json", "\n" + json.dumps(OBJECTS, indent=2).replace("\n", "\r\n") + "\n"),
        ("a.jsonl.xz", lzma.compress(json.dumps(OBJECTS).encode("utf-8-sig"))),
        ("a.parquet", parquet({name: [row[name] for row in OBJECTS] for name in NAMES})),
        ("a.parquet.gz", gzip.compress(parquet({name: [row[name] for row in OBJECTS] for name in NAMES}), mtime=0)),
    ],
)
def test_every_kind_of_file_holds_the_same_rows(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    table = read_table(str(path))
    assert list(table.columns) == NAMES
    assert rows_of(path) == ROWS
    if not name.startswith("a.parquet"):
        assert read_table(str(path), "utf-8").columns == table.columns  # its byte-order mark decides


@pytest.mark.parametrize("separator", ["\t", "|"])
@pytest.mark.parametrize("header", [True, False])
def test_quotes_are_text_where_they_do_not_quote(tmp_path, separator, header):
    """As in the SMS Spam Collection and MRPC: some fields begin with a quote, some are in quotes, few are doubled."""
    rows = [*PLAIN, ['" a lone quote', "ham"], ['ends with one "', "ham"], ['"all of it"', "spam"], ['"', "ham"]]
    (tmp_path / "a.tsv").write_text(joined(rows, separator, header))
    assert rows_of(tmp_path / "a.tsv") == rows


def test_lone_quotes_never_join_lines(tmp_path):
    """By RFC 4180 lines 2 to 4 would be one row: the fields begin and end with quotes."""
    text = 'ham\tone two\nham\t"begins\nspam\tthe middle\nham\tends"\nspam\tlast one\n'
    (tmp_path / "a.tsv").write_text(text)
    assert len(read_table(str(tmp_path / "a.tsv"))) == 5
    assert [line for line, _ in unquoted_rows(read_text(str(tmp_path / "a.tsv")))] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("header", ["", '"body"\t"kind"\n', "body\tkind\n"])
def test_a_column_all_in_quotes_is_quoted(tmp_path, header):
    """As R and `csv.QUOTE_NONNUMERIC` write: words in quotes, numbers not."""
    (tmp_path / "a.tsv").write_text(header + '"one two"\t1\n"three ""3"""\t0\n"four, five"\t1\n')
    assert rows_of(tmp_path / "a.tsv") == [["one two", "1"], ['three "3"', "0"], ["four, five", "1"]]


def test_quoted_line_ends_and_their_lines(tmp_path):
    (tmp_path / "a.csv").write_text('text,label\n"one\n\nmore",ham\n\ntwo,spam\n"three\nmore",ham\n')
    table = read_table(str(tmp_path / "a.csv"))
    assert table.columns["text"] == ["one\n\nmore", "two", "three\nmore"]
    assert table.lines == [2, 6, 7]


def test_random_tables_come_back_as_they_were_written(tmp_path, rng):
    """Any delimiter, any quoting, with and without a header, fields of all the awkward characters."""
    pieces = [*"ab ,;|\t\"'\n", "word ", "naïve ", "12", ". "]
    for trial in range(300):
        rows = []
        for number in range(int(rng.integers(4, 12))):
            text = "".join(rng.choice(pieces, rng.integers(1, 30))) + f"end{number}"
            rows.append([text, str(rng.choice(["ham", "spam"]))])
        rows += [["plain", "ham"], ["plain too", "ham"], ["plain three", "spam"], ["plain four", "spam"]]
        delimiter = str(rng.choice([",", ";", "\t", "|"]))
        suffix = {"\t": ".tsv", "|": ".txt"}.get(delimiter, ".csv")
        header = bool(trial % 2)
        content = separated(rows, header, delimiter=delimiter, lineterminator="\n")
        path = tmp_path / f"{trial}{suffix}"
        path.write_text(content)
        table = read_table(str(path))
        assert table.header == header, content
        assert rows_of(path) == rows, content


def test_no_quote_in_a_text_joins_or_drops_rows(rng):
    """Any quotes, commas and semicolons in unquoted fields."""
    pieces = [*'"""ab ,;', "word "]
    for _ in range(500):
        rows = [["ham", "it is plain"], ["spam", "so is it"]]
        for _ in range(int(rng.integers(3, 12))):
            rows.append([str(rng.choice(["ham", "spam"])), "".join(rng.choice(pieces, rng.integers(1, 12))) + "x"])
        separator = str(rng.choice(["\t", "|"]))
        content = joined(rows, separator, header=False)
        assert [fields for _, fields in read_separated_rows(content, "a.txt", ".txt").rows] == rows, content


# ---- header


@pytest.mark.parametrize(
    ("first", "header"),
    [
        ("label\ttext", True),
        ("kind\tbody", True),
        ("v1\tv2", True),
        ("intent\tsaid", True),
        ("act\ttweet_text", False),  # act may be a class
        ("gratitude\tthank you", False),
        ("0\t1", True),  # as pandas numbers columns without names
        ("ham\tOk", False),  # ham comes again
        ("eggs\tthey are fresh", False),
        ("question\tWhat is it, then, that you want?", False),
        ("label\tThe text of each message, as it was sent", True),
        ("eggs\tnever seen before in this file", False),
        ("eggs\tNever!", False),
        ("1\tthree", False),
    ],
)
def test_a_header_is_recognised_and_no_row_is_lost(tmp_path, first, header):
    (tmp_path / "a.tsv").write_text(f"{first}\nham\tOk lar\nspam\tFree entry\nham\tsee you\n")
    table = read_table(str(tmp_path / "a.tsv"))
    assert table.header == header
    assert len(table) == 4 - header
    assert list(table.columns) == (first.split("\t") if header else ["column_1", "column_2"])


@pytest.mark.parametrize("rows", [9, 10])
def test_a_unique_value_above_classes_of_many_rows_is_a_name(tmp_path, rows):
    lines = [f"{label}\tsome words {number}\n" for number in range(rows) for label in ("greeting", "farewell")]
    (tmp_path / "a.tsv").write_text("act\tsaid\n" + "".join(lines))
    table = read_table(str(tmp_path / "a.tsv"))
    assert table.header == (rows == 10)
    assert len(table) == 2 * rows + (rows < 10)


def test_numbers_below_words_tell_a_header(tmp_path):
    (tmp_path / "a.csv").write_text("words of a caller,number of calls\nhi there,1\nwho is it,0\nme again,1\n")
    assert list(read_table(str(tmp_path / "a.csv")).columns) == ["words of a caller", "number of calls"]


def test_classes_with_the_name_of_a_column_are_no_header(tmp_path):
    (tmp_path / "a.tsv").write_text("question\twho\nanswer\tme\nquestion\twhat\ncontent\tthat\n")
    assert len(read_table(str(tmp_path / "a.tsv"))) == 4


def test_lines_of_text_are_a_column(tmp_path):
    (tmp_path / "a.txt").write_text("Well\nfirst, second, third\n\nno sign\nit; has, some\n")
    assert read_table(str(tmp_path / "a.txt")).columns == {
        "column_1": ["Well", "first, second, third", "no sign", "it; has, some"]
    }


def test_columns_without_names_are_numbered(tmp_path):
    (tmp_path / "a.csv").write_text("v1,v2,,\nham,one two,,\nspam,two,,x\n")
    assert list(read_table(str(tmp_path / "a.csv")).columns) == ["v1", "v2", "column_3", "column_4"]


# ---- encodings


@pytest.mark.parametrize(
    ("encoding", "text", "advised"), [("latin-1", "caf\xe9", "latin-1"), ("cp1252", "don’t – caf\xe9", "cp1252")]
)
def test_the_advised_encoding_works(tmp_path, encoding, text, advised):
    path = tmp_path / "a.csv"
    path.write_bytes(f"text,label\nplain,ham\n{text},ham\nplain,spam\n".encode(encoding))
    with pytest.raises(InputError, match=rf"a\.csv:3:\d+: byte 0x\w\w is not UTF-8; --encoding {advised}") as caught:
        read_labelled([str(path)])

    given = caught.value.remedy.split()[1].rstrip(",")
    assert read_labelled([str(path)], encoding=given).texts[1] == text


def test_bytes_that_are_control_characters_in_every_encoding_are_decoded(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,label\n\x81caf\xe9,ham\nplain,spam\n")  # 0x81 is not defined in Windows-1252
    with pytest.raises(InputError, match="--encoding latin-1"):
        read_labelled([str(path)])
    assert read_labelled([str(path)], encoding="latin-1").texts == ["\x81café", "plain"]


# ---- Parquet and folders


def test_class_names_of_a_parquet_file(tmp_path):
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    columns = {"text": ["a b c", "d", "e"], "label": [1, 0, -1]}
    datasets.Dataset.from_dict(columns, features=features).to_parquet(str(tmp_path / "a.parquet"))
    assert read_table(str(tmp_path / "a.parquet")).columns["label"] == ["yes", "no", None]


def make(folder, **files):
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_a_folder_of_classes(tmp_path):
    for number in range(3):
        make(tmp_path, **{f"spam__{number}.txt": f"win\n{number}\n", f"ham__{number}.eml": f"hi {number}"})
    make(tmp_path, **{"readme.md": "about", "ham__.hidden": "no", "spam__empty.txt": " \n"})
    rows = read_labelled([str(tmp_path)])
    assert rows.labels == ["ham"] * 3 + ["spam"] * 3
    assert rows.texts == ["hi 0", "hi 1", "hi 2", "win\n0", "win\n1", "win\n2"]
    assert rows.places[0] == (str(tmp_path / "ham/0.eml"), 1)
    assert rows.line().endswith("; 1 without a text left out; files next to the subfolders, not read: 1")


def test_a_folder_of_parts(tmp_path):
    make(tmp_path, **dict.fromkeys(("train-0.csv", "train-1.csv", "dev.tsv", "test.jsonl.xz", "trainer.txt"), "x"))
    found = files_of_parts({"train": [str(tmp_path)]})
    assert {part: [path.rsplit("/")[-1] for path in paths] for part, paths in found.items()} == {
        "train": ["train-0.csv", "train-1.csv"], "validation": ["dev.tsv"], "test": ["test.jsonl.xz"],
    }  # fmt: skip
    assert list(found) == ["train", "validation", "test"]
    assert files_of_parts(given := {"train": ["a.csv"], "test": ["b.csv"]}) == given


def test_a_folder_of_parts_and_classes(tmp_path):
    make(tmp_path, **{"train__neg__1.txt": "bad", "train__pos__1.txt": "good", "test__pos__1.txt": "nice"})
    found = files_of_parts({"train": [str(tmp_path)]})
    assert list(found) == ["train", "test"]
    assert read_labelled(found["train"]).labels == ["neg", "pos"]
    assert read_labelled(found["test"]).texts == ["nice"]


# ---- errors


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", "text,label\nx,1\ny\n", "a.csv:3: 1 fields instead of 2; correct the row"),
        ("a.csv", "label\n" + "x,1\n" * 9, "a.csv:1: 1 fields instead of 2; correct the row"),
        ("a.csv", 'text,label\na,0\n"x,1\ny,1\n', "a.csv:3: not CSV: unexpected end of data"),
        ("a.csv", 'text,label\n"x"y,1\n', "a.csv:2: not CSV: ',' expected after '\"'"),
        ("a.csv", "text,text\nx,1\n", "a.csv:1: two columns are called 'text'; rename one of them"),
        ("a.csv", "text,label\nx,1\ntext,label\ny,0\n", "a.csv:3: the header comes again; remove the line"),
        ("a.tsv", 'ham\tx\nham\t"y\nspam\tz\tw\n', "a.tsv:3: 3 fields instead of 2"),
        ("a.csv", b"text,label\ncaf\xe9,1\n", "a.csv:2:4: byte 0xe9 is not UTF-8; --encoding latin-1"),
        ("a.csv", "text,label\nx,1\n".encode("utf-16-le"),
         "a.csv:1: a NUL character; if it is text, --encoding utf-16-le"),
        ("a.csv", "text,label\nx,1\n".encode("utf-16-be"),
         "a.csv:1: a NUL character; if it is text, --encoding utf-16-be"),
        ("a.csv", "text,label\nx\0,1\n", "a.csv:2: a NUL character; remove it"),
        ("a.csv", b"\xff\xfea", "a.csv:1:3: byte 0x61 is not UTF-16"),
        ("a.csv", b"PK\x03\x04", "a.csv: it begins like zip, and not like text"),
        ("a.csv.gz", b"text,label\n", "a.csv.gz: cannot be read: Not a gzipped file"),
        ("a.jsonl", '{"text": "x"}\n\n{"text": \n', "a.jsonl:3:10: not JSON: Expecting value"),
        ("a.jsonl", '{"text": "x"}\n5\n', "a.jsonl:2: not a JSON object"),
        ("a.json", '[{"text": "x"},\n {"text" "y"}]', "a.json:2:10: not JSON: Expecting ':' delimiter"),
        ("a.json", '[{"text": "x"},\n 5]', "a.json:2: not a JSON object"),
        ("a.json", '[{"text": "x"}\n{"text": "y"}]', "a.json:2: not JSON: the array is not closed"),
        ("a.json", '[{"text": "x"}', "a.json:1: not JSON: the array is not closed"),
        ("a.json", '[{"text": "x"}]\n\nx', "a.json:3: not JSON: text after the array"),
        ("a.json", "[" * 100_000, "a.json:1: not JSON: maximum recursion depth exceeded"),
        ("a.parquet", b"PAR1", "a.parquet: not a Parquet file: "),
        ("a.xlsx", b"PK", "a.xlsx: unknown kind '.xlsx'; use .csv .tsv .txt .jsonl .json .parquet, also .gz or .xz"),
    ],
)  # fmt: skip
def test_every_error_names_file_line_and_remedy(tmp_path, monkeypatch, name, content, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        read_table(name)
    assert str(caught.value).startswith(expected)


def test_unknown_encodings(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\nx,1\n")
    with pytest.raises(InputError, match=r"--encoding: unknown encoding 'latni-1'; did you mean 'latin-1'\?"):
        read_table(str(tmp_path / "a.csv"), "latni-1")
    with pytest.raises(InputError, match="unknown encoding 'hex'"):
        read_table(str(tmp_path / "a.csv"), "hex")


def test_a_folder_of_neither(tmp_path):
    make(tmp_path, **{"a.csv": "x"})
    with pytest.raises(
        InputError, match="a folder without train file and without text files by class; name the files"
    ):
        read_labelled([str(tmp_path)])
    make(tmp_path, **{"test.csv": "x"})
    with pytest.raises(InputError, match="no train file in the folder"):
        files_of_parts({"train": [str(tmp_path)]})


def test_large_files_are_sampled_for_their_delimiter(tmp_path):
    rows = [[f"text number {number}, of many; others | too", str(number % 2)] for number in range(20_000)]
    (tmp_path / "a.txt").write_text(separated(rows, delimiter=";"))
    table = read_table(str(tmp_path / "a.txt"))
    assert len(table) == 20_000
    assert np.unique(table.columns["kind"]).tolist() == ["0", "1"]
