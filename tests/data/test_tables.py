"""Tables of any kind give the same rows, with the values and in the order of the file, and every error its line."""

import csv
import gzip
import io
import json
import lzma
import random

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_hf.data.text.tables import Row, read_rows
from bert_hf.errors import InputError

NAMES = ["body", "kind"]
ROWS = [
    ['He said "hi, you; there"', "ham"],
    ["WIN a | prize!\nCall 09", "spam"],
    ["NA", "007"],
    ["2020-01-01", "1.50"],
    ['"quoted" to the "end"', "spam"],
]
ONE_LINE = [[text.replace("\n", " "), label] for text, label in ROWS]
OBJECTS = [dict(zip(NAMES, row, strict=True)) for row in ROWS]


def separated(rows, header=True, **options) -> str:
    file = io.StringIO()
    csv.writer(file, **options).writerows([NAMES, *rows] if header else rows)
    return file.getvalue()


def joined(rows, header=True) -> str:
    return "".join("\t".join(row) + "\n" for row in ([NAMES, *rows] if header else rows))


def parquet(columns) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


PARQUET = parquet({name: [row[name] for row in OBJECTS] for name in NAMES})


def write(folder, name, content) -> str:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(folder / name)


def values(path, encoding=None):
    return [list(row.values.values()) for row in read_rows(path, encoding)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", separated(ROWS)),
        ("a.csv", separated(ROWS, lineterminator="\n")),
        ("a.csv", separated(ROWS, delimiter=";")),
        ("a.csv", separated(ROWS, quoting=csv.QUOTE_ALL)),
        ("a.csv", "\ufeff" + separated(ROWS)),
        ("a.csv", separated([*ROWS[:2], NAMES, *ROWS[2:]])),  # two exports, joined
        ("a.csv", '"sep=;"\n' + separated(ROWS, delimiter=";")),
        ("a.csv.gz", gzip.compress(separated(ROWS).encode(), mtime=0)),
        ("a.jsonl", "".join(json.dumps(row) + "\n\n" for row in OBJECTS)),
        ("a.json", "".join(json.dumps(row) + "\n" for row in OBJECTS)),
        ("a.json", json.dumps(OBJECTS)),
        ("a.json", json.dumps({"version": 1, "data": OBJECTS})),
        ("a.json", "\n" + json.dumps(OBJECTS, indent=2).replace("\n", "\r\n") + "\n"),
        ("a.jsonl.xz", lzma.compress(json.dumps(OBJECTS).encode("utf-8-sig"))),
        ("a.parquet", PARQUET),
        ("a.parquet.gz", gzip.compress(PARQUET, mtime=0)),
    ],
)
def test_every_kind_of_file_holds_the_same_rows(tmp_path, name, content):
    """Cells are strings as they stand in the file: `NA` is no missing value, `007` no number, a date no timestamp."""
    assert [row.values for row in read_rows(write(tmp_path, name, content))] == OBJECTS


@pytest.mark.parametrize("name", ["a.tsv", "a.txt", "a"])
@pytest.mark.parametrize("options", [{}, {"quoting": csv.QUOTE_ALL}, {"quoting": csv.QUOTE_NONNUMERIC}])
def test_quotes_of_a_tsv_are_quoting(tmp_path, name, options):
    content = separated(ONE_LINE, delimiter="\t", **options)
    assert values(write(tmp_path, name, content)) == ONE_LINE
    assert values(write(tmp_path, f"{name or 'a'}.xz", lzma.compress(content.encode()))) == ONE_LINE


@pytest.mark.parametrize("header", [True, False])
def test_quotes_are_text_where_they_break_the_rules(tmp_path, header):
    """As in the SMS Spam Collection and MRPC: some fields begin with a quote, some are in quotes."""
    rows = [['" a lone quote', "ham"], ['ends with one "', "ham"], ['"all of it"', "spam"], ['"x" y', "spam"]]
    assert values(write(tmp_path, "a.tsv", joined(rows, header))) == rows


def test_lone_quotes_never_join_lines(tmp_path):
    """By RFC 4180 lines 2 to 4 would be one row: the fields begin and end with quotes."""
    path = write(tmp_path, "a.tsv", 'ham\tone two\nham\t"begins\nspam\tthe middle\nham\tends"\nspam\tlast one\n')
    assert [row.line for row in read_rows(path)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_random_tables_come_back_as_they_were_written(tmp_path, delimiter):
    """With and without a header, with fields of all the awkward characters."""
    rng = random.Random(0)
    pieces = [*"ab ,;|\"'", "word ", "naïve ", "12", ". ", *([] if delimiter == "\t" else ["\n", "\t"])]
    suffix = ".tsv" if delimiter == "\t" else ".csv"
    for trial in range(100):
        rows = []
        for number in range(rng.randrange(4, 12)):
            text = "".join(rng.choices(pieces, k=rng.randrange(1, 30))) + f"end{number}"
            rows.append([text, rng.choice(["ham", "spam"])])
        rows = [["first", "ham"], *rows, ["last", "ham"]]
        content = separated(rows, bool(trial % 2), delimiter=delimiter, lineterminator="\n")
        assert values(write(tmp_path, f"{trial}{suffix}", content)) == rows, content


def test_quoted_line_ends_and_their_lines(tmp_path):
    path = write(tmp_path, "a.csv", 'text,label\n"one\n\nmore",ham\n\ntwo,spam\n"three\nmore",ham\n')
    assert [(row.line, row.values["text"]) for row in read_rows(path)] == [
        (2, "one\n\nmore"),
        (6, "two"),
        (7, "three\nmore"),
    ]


def test_a_field_of_any_length_and_a_carriage_return_in_a_field(tmp_path):
    rows = [["long " * 50_000, "ham"], ["short", "spam"]]
    assert values(write(tmp_path, "a.csv", separated(rows))) == rows
    with pytest.raises(InputError, match=r"b\.csv:2: not CSV: new-line character"):
        values(write(tmp_path, "b.csv", "text,label\na\rb,ham\nc,spam\n"))


@pytest.mark.parametrize(
    ("first", "names"),
    [
        ("label\ttext", ["label", "text"]),
        ("v1\tv2", ["v1", "v2"]),
        ("text\tkind", ["text", "kind"]),  # `text` is a text, too
        ("ham\tOk", None),  # ham comes again
        ("ham\ttext", ["ham", "text"]),  # a header may name its label column like a class
        ("gratitude\tthank you", ["gratitude", "thank you"]),  # the user has to name the columns
    ],
)
def test_a_table_of_two_columns_whose_label_comes_again_has_no_header(tmp_path, first, names):
    path = write(tmp_path, "a.tsv", f"{first}\nham\tOk lar\nspam\tFree entry\nham\ttext me\ntext\tham\n")
    rows = [row.values for row in read_rows(path)]
    assert len(rows) == (5 if names is None else 4)
    assert list(rows[0]) == (names or ["label", "text"])


def test_columns_without_names_are_kept(tmp_path):
    path = write(tmp_path, "a.csv", "v1,v2,,\nham,one two,,\nspam,two,,x\n")
    assert next(read_rows(path)) == Row({"v1": "ham", "v2": "one two", "": "", " ": ""}, path, 2)


def test_json_as_pandas_and_others_write_it(tmp_path):
    frame = pd.DataFrame({"text": ["a", "b"], "label": [0, 1]})
    with pytest.raises(InputError, match="an object for each column; write rows: orient='records'"):
        list(read_rows(write(tmp_path, "a.json", frame.to_json())))
    path = write(tmp_path, "b.json", json.dumps({"version": 1, "data": frame.to_dict("records")}, indent=1))
    assert [row.values for row in read_rows(path)] == frame.to_dict("records")
    path = write(tmp_path, "c.jsonl", '{"id": "n0"}\n{"id": "n1", "text": "b"}\n')
    assert [row.values for row in read_rows(path)] == [{"id": "n0", "text": None}, {"id": "n1", "text": "b"}]


def test_spaces_around_the_names_of_columns(tmp_path):
    assert list(next(read_rows(write(tmp_path, "a.csv", "text, label\none two, ham\n"))).values) == ["text", "label"]


def test_a_first_row_that_counts_is_reported(tmp_path, caplog):
    """A later file with a header of its own would be read as one without."""
    path = write(tmp_path, "b.csv", "w1,0\nw1,1\n")
    with caplog.at_level("INFO", logger="bert_hf"):
        assert next(read_rows(path, columns=("id", "kind"))).values == {"id": "w1", "kind": "0"}
    assert "b.csv: no header" in caplog.text


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-16-le", "utf-8"])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.csv.gz"])
def test_encodings(tmp_path, encoding, name):
    rows = [["café", "ham"], ["naïve\nway", "spam"]]
    content = separated(rows) if "csv" in name else "".join(
        json.dumps(dict(zip(NAMES, row, strict=True)), ensure_ascii=False) + "\r\n" for row in rows
    )  # fmt: skip
    data = content.encode(encoding)
    path = write(tmp_path, name, gzip.compress(data) if name.endswith(".gz") else data)
    assert values(path, encoding) == rows


def test_names_of_classes_replace_their_numbers(tmp_path):
    features = datasets.Features(
        {
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "tags": datasets.List(datasets.ClassLabel(names=["O", "B"])),
            "text": datasets.Value("string"),
        }
    )
    columns = {"label": [1, 0, -1], "tags": [[0, 1], [], [1]], "text": list("abc")}
    datasets.Dataset.from_dict(columns, features=features).to_parquet(str(tmp_path / "a.parquet"))
    rows = [row.values for row in read_rows(str(tmp_path / "a.parquet"))]
    assert [row["label"] for row in rows] == ["yes", "no", None]
    assert [row["tags"] for row in rows] == [["O", "B"], [], ["B"]]


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.csv", "text,label\nx,1\ny\n", "a.csv:3: "),
        ("a.csv", "text,label\nx,1,4\ny,1,5\n", "a.csv:2: "),  # pandas takes the first column for an index
        ("a.csv", 'text,label\na,0\n"x,1\ny,1\n', "a.csv:3: not CSV"),
        ("a.csv", "text,text\nx,1\n", "a.csv:1: duplicate column 'text'"),
        ("a.tsv", 'ham\tx\nham\t"y\nspam\tz\tw\n', "a.tsv:3: "),
        ("a.csv", b"text,label\ncaf\xe9,1\n", "a.csv:2:4: byte 0xe9 is not UTF-8"),
        ("a.csv", "text,label\nx,1\n".encode("utf-16"), "a.csv:1:1: byte 0xff is not UTF-8"),
        ("a.csv", b"\x1f\x8b\x08", "a.csv:1: cannot be decompressed"),
        ("a.jsonl", '{"text": "x"}\n\n{"text": \n', "a.jsonl:3:10: not JSON"),
        ("a.jsonl", '{"text": "x"}\n5\n', "a.jsonl:2: not a JSON object"),
        ("a.json", '[{"text": "x"},\n {"text" "y"}]', "a.json:2:10: not JSON"),
        ("a.json", "[" * 100_000, "a.json: not JSON"),
        ("a.parquet", b"PAR1", "a.parquet: not a Parquet file"),
        ("a.xlsx", b"PK", "a.xlsx: unknown kind '.xlsx'"),
    ],
)
def test_every_error_names_its_place(tmp_path, monkeypatch, name, content, place):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, name, content)
    with pytest.raises(InputError) as caught:
        list(read_rows(name))
    assert str(caught.value).startswith(place)
