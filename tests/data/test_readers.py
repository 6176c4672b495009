import gzip
import json
import lzma
import os
import re
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_hf.data.text import readers, tables
from bert_hf.data.text.input_files import expand_paths
from bert_hf.data.text.readers import Piece, cut_pieces, join_pieces, read_lines
from bert_hf.data.text.sources import TextFile
from bert_hf.errors import InputError


def read_documents(patterns, text_column=None):
    return [text for path in expand_paths(patterns) for text in join_pieces(TextFile(path, text_column).read())]


BROKEN_GZIP = gzip.compress(b"text", mtime=0)[:10] + b"\xff" * 9  # after a complete header
PLAIN = "First one.\nSecond one.\n\n\n  \nAnother document.\n"


def test_a_file_is_read_once(tmp_path, monkeypatch):
    """Read twice, its documents would be trained on and held out."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("One.")
    (tmp_path / "link.txt").symlink_to("a.txt")
    assert expand_paths(["b.txt", "a.txt"]) == ["b.txt", "a.txt"]
    for patterns in (["a.txt", "a.txt"], ["a.txt", "./a.txt"], ["a.txt", "link.txt"], ["a.txt", "[al]*.txt"]):
        assert expand_paths(patterns) == ["a.txt"]
    with pytest.raises(InputError, match="no such file; download it first"):
        expand_paths(["https://host/a.txt"])


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_plain_text_and_json_lines_compressed_or_not(tmp_path, suffix):
    pack = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix]
    (tmp_path / f"a.txt{suffix}").write_bytes(pack(PLAIN.encode()))
    rows = "".join(json.dumps({"id": i, "text": f"row {i}"}) + "\n" for i in range(3))
    (tmp_path / f"b.jsonl{suffix}").write_bytes(pack(rows.encode()))
    assert list(read_documents([str(tmp_path / f"a.txt{suffix}")])) == ["First one.\nSecond one.", "Another document."]
    assert list(read_documents([str(tmp_path / f"b.jsonl{suffix}")])) == ["row 0", "row 1", "row 2"]


def test_parquet_and_globs(tmp_path, caplog):
    for name in "ba":
        pq.write_table(pa.table({"re": ["a b", ""], "body": [f"{name}1", f"{name}2"]}), tmp_path / f"{name}.parquet")
    assert list(read_documents([str(tmp_path / "*.parquet")])) == ["a1", "a2", "b1", "b2"]
    assert "the text is in column 'body', not in re (--text_column names another)" in caplog.text
    with pytest.raises(InputError, match="no column 'text'; pass --text_column, one of: re, body"):
        list(read_documents([str(tmp_path / "a.parquet")], "text"))


def test_byte_order_mark_and_windows_line_ends(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfOne.\r\nTwo.\r\n\r\nThree.")
    assert list(read_documents([str(tmp_path / "a.txt")])) == ["One.\nTwo.", "Three."]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", b"a\nbad \xff byte\n", "a.txt:2:5: byte 0xff is not UTF-8; convert a Windows file: iconv -f cp1252"),
        ("a.jsonl", b'{"x": "p", "y": "q"}\n', "a.jsonl:1: text column not recognised; pass --text_column, one of"),
        ("a.json", b'{"title": "p", "paragraphs": ["q", "r"]}', "a.json:1: text column not recognised; pass --"),
        ("a.jsonl", b'{"text": "p"}\n{"t": "q"}\n', "a.jsonl:2: no column 'text'"),
        ("a.jsonl", b'{"text": "p"}\n{"text": 3}\n', "a.jsonl:2: column 'text' holds the number 3, not text"),
        (
            "a.jsonl",
            b'{"text": {"de": "p", "en": "q"}}\n',
            "a.jsonl:1: column 'text' holds an object with de, en, not text",
        ),
        ("a.txt", b"%PDF-1.7\n", "a.txt: a PDF, not text"),
        ("a.txt", "x".encode("utf-16"), "a.txt:1:1: byte 0xff is not UTF-8; convert the file: iconv -f utf-16"),
        ("a.txt", "x".encode("utf-16-be"), "a.txt:1:1: byte 0x00 is not UTF-8; convert the file: iconv -f utf-16"),
        ("a.txt.gz", BROKEN_GZIP, "a.txt.gz:1: cannot be decompressed: Error -3"),
        ("a.parquet.gz", BROKEN_GZIP, "a.parquet.gz: not a Parquet file: Error -3"),
    ],
)
def test_every_error_names_its_place(tmp_path, monkeypatch, name, content, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        list(read_documents([name]))
    assert str(caught.value).startswith(expected)


def test_line_numbers(tmp_path):
    (tmp_path / "a.txt").write_text("x\ny\n")
    assert list(read_lines(tmp_path / "a.txt")) == [(1, "x"), (2, "y")]


def test_pieces_are_bounded_and_lose_nothing(tmp_path, monkeypatch):
    text = "\n".join(f"line {i} of it" for i in range(100))
    pieces = list(cut_pieces(text, 50))
    assert "".join(piece.text for piece in pieces) == text
    assert all(len(piece.text) <= 50 and piece.text.endswith("\n") for piece in pieces[:-1])
    assert [piece.ends for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert list(cut_pieces("x" * 120, 50)) == [Piece("x" * 50, False), Piece("x" * 50, False), Piece("x" * 20, True)]
    assert list(cut_pieces("")) == [Piece("", True)]


@pytest.mark.parametrize("word", ["word ", "ä ", "漢字", "😀"])
def test_a_long_line_is_read_in_parts_between_characters(tmp_path, monkeypatch, word):
    monkeypatch.setattr(readers, "PIECE", 64)
    (tmp_path / "a.txt").write_text(word * 200 + "\n\nnext")
    pieces = list(TextFile(str(tmp_path / "a.txt")).read())
    assert all(len(piece.text) <= 64 for piece in pieces)
    assert [piece.ends for piece in pieces].count(True) == 2
    assert pieces[-1] == ("next", True)
    assert "".join(piece.text for piece in pieces[:-1]) == word * 200


def test_halves_of_surrogate_pairs_are_replaced(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a\\ud800b"}\n{"text": "\\ud83d\\ude00"}\n')
    assert read_documents([str(tmp_path / "a.jsonl")]) == ["a\ufffdb", "😀"]


def test_a_row_without_text_is_no_document(tmp_path):
    """In the first row, too: the column is known by its name."""
    (tmp_path / "a.jsonl").write_text('{"text": null, "url": "x"}\n{"text": "p"}\n{"text": null}\n')
    pq.write_table(pa.table({"text": [None, "p", None], "url": ["x", "y", "z"]}), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        assert read_documents([str(tmp_path / name)]) == ["p"]


def test_a_null_in_the_first_row_is_no_reason_to_take_another_column(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": "x1", "said": null}\n{"id": "x2", "said": "Real text."}\n')
    with pytest.raises(InputError, match=r"a.jsonl:1: text column not recognised"):
        read_documents([str(tmp_path / "a.jsonl")])
    assert read_documents([str(tmp_path / "a.jsonl")], "said") == ["Real text."]


def test_parquet_is_not_read_a_row_group_at_once(tmp_path):
    texts = [os.urandom(2000).hex() for _ in range(8000)]  # 32 MB
    table = pa.table({"text": texts})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False, compression="none")
    del table
    read = join_pieces(TextFile(str(tmp_path / "a.parquet")).read())
    before = pa.total_allocated_bytes()
    assert next(read) == texts[0]
    assert pa.total_allocated_bytes() - before < 20_000_000
    assert list(read) == texts[1:]


@pytest.mark.parametrize(
    ("content", "column", "message"),
    [
        ("Hello\none two.\n", None, "a.csv:1: text column not recognised; pass --text_column, one of: Hello"),
        ("Win,spam\nGo home.,ham\nWin,spam\n", None, "text column not recognised; pass --text_column, one of: Win,"),
        ("ham,Nein.\nspam,Ja.\nham,Doch.\n", "message", "no column 'message'; pass --text_column"),
        ("one,two\np,q\n", None, "text column not recognised"),
    ],
)
def test_neither_a_label_nor_a_name_becomes_the_text_nor_is_a_text_lost(tmp_path, content, column, message):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(InputError, match=re.escape(message)):
        read_documents([str(tmp_path / "a.csv")], column)


@pytest.mark.parametrize("header", ["id,text", "id,text,year"])
def test_a_text_of_a_table_may_have_any_length(tmp_path, header):
    long = "word " * 40_000
    (tmp_path / "a.csv").write_text(f"{header}\n1,{long}{',2' if 'year' in header else ''}\n")
    assert "".join(read_documents([str(tmp_path / "a.csv")])).split() == long.split()


def test_tables_are_not_held_in_memory(tmp_path):
    (tmp_path / "a.csv").write_text("id,text\n" + "".join(f"{number},{'word ' * 200}\n" for number in range(5_000)))
    tracemalloc.start()
    rows = sum(1 for _ in tables.read_rows(str(tmp_path / "a.csv")))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows == 5_000
    assert peak < 4_000_000  # of 5 MB of text
