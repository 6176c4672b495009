import gzip
import json
import lzma

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_hf import sources
from bert_hf.errors import InputError
from bert_hf.sources import default_documents, expand, read_documents, read_lines

PLAIN = "First one.\nSecond one.\n\n\n  \nAnother document.\n"


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_plain_text_and_json_lines_compressed_or_not(tmp_path, suffix):
    pack = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix]
    (tmp_path / f"a.txt{suffix}").write_bytes(pack(PLAIN.encode()))
    rows = "".join(json.dumps({"id": i, "text": f"row {i}"}) + "\n" for i in range(3))
    (tmp_path / f"b.jsonl{suffix}").write_bytes(pack(rows.encode()))
    assert list(read_documents([str(tmp_path / f"a.txt{suffix}")])) == ["First one.\nSecond one.", "Another document."]
    assert list(read_documents([str(tmp_path / f"b.jsonl{suffix}")])) == ["row 0", "row 1", "row 2"]


def test_parquet_and_globs(tmp_path):
    for name in "ba":
        pq.write_table(pa.table({"id": [1, 2], "body": [f"{name}1", f"{name}2"]}), tmp_path / f"{name}.parquet")
    assert list(read_documents([str(tmp_path / "*.parquet")])) == ["a1", "a2", "b1", "b2"]
    with pytest.raises(InputError, match="no column 'text'"):
        list(read_documents([str(tmp_path / "a.parquet")], "text"))


def test_byte_order_mark_and_windows_line_ends(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfOne.\r\nTwo.\r\n\r\nThree.")
    assert list(read_documents([str(tmp_path / "a.txt")])) == ["One.\nTwo.", "Three."]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", b"fine\nbad \xff byte\n", "a.txt:2:5: byte 0xff is not UTF-8"),
        ("a.txt", b"", "a.txt: the file is empty"),
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', "a.jsonl:2:10: not JSON"),
        ("a.jsonl", b"[1]\n", "a.jsonl:1: not a JSON object"),
        ("a.jsonl", b'{"x": "p", "y": "q"}\n', "a.jsonl:1: which column holds the text?; --text_column, one of: x, y"),
        ("a.jsonl", b'{"text": "p"}\n{"t": "q"}\n', "a.jsonl:2: no column 'text'"),
        ("a.jsonl", b'{"text": "p"}\n{"text": 3}\n', "a.jsonl:2: column 'text' is not text"),
        ("a.txt.gz", b"plain", "a.txt.gz:1: cannot be decompressed"),
        ("a.txt.xz", b"plain", "a.txt.xz:1: cannot be decompressed"),
        ("a.parquet", b"plain", "a.parquet: not a Parquet file"),
        ("a.pdf", b"plain", "a.pdf: unknown kind '.pdf'"),
    ],
)
def test_every_fault_names_its_place(tmp_path, monkeypatch, name, content, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        list(read_documents([name]))
    assert str(caught.value).startswith(expected)


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        expand([str(tmp_path / "*.txt")])
    with pytest.raises(InputError, match="a folder"):
        expand([str(tmp_path)])


def test_line_numbers(tmp_path):
    (tmp_path / "a.txt").write_text("x\ny\n")
    assert list(read_lines(tmp_path / "a.txt")) == [(1, "x"), (2, "y")]


def test_the_default_text_is_prose_and_imports_nothing(monkeypatch):
    monkeypatch.setattr(sources, "DEFAULT_SHARE", 150_000)
    monkeypatch.setattr(sources, "DEFAULT_PACKAGES", ())
    documents = default_documents.__wrapped__()
    assert documents == default_documents.__wrapped__()
    assert sum(map(len, documents)) >= 150_000
    paragraphs = [line for document in documents for line in document.split("\n")]
    assert len(paragraphs) == len(set(paragraphs))
    assert not any(">>>" in line[:4] for line in paragraphs)
    assert all(len(line.split()) >= 8 for line in paragraphs)
