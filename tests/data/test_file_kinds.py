"""The content of a file tells its kind, whatever its name."""

import base64
import bz2
import codecs
import csv
import gzip
import json
import lzma
import subprocess
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_hf.config.arguments import TextArguments
from bert_hf.data.corpus.requested_corpus import text_sources
from bert_hf.data.text.input_files import kind_of
from bert_hf.data.text.mails import is_mail, mail_text
from bert_hf.data.text.readers import join_pieces, read_documents
from bert_hf.data.text.sources import hub_rows
from bert_hf.data.text.tables import list_cell, read_rows
from bert_hf.errors import InputError

TEXTS = ["Ein Fuß, ein Weg.", "Second text."]
LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
PLAIN = "\n\n".join(TEXTS).encode()


def zstd(raw: bytes) -> bytes:
    return bytes(pa.compress(raw, "zstd", asbytes=True))


def texts_of(*files, **options) -> list[str]:
    sources = text_sources(TextArguments(train_file=list(map(str, files)), **options), list(map(str, files)))
    return [text for source in sources for text in join_pieces(source.read())]


@pytest.mark.parametrize("name", ["a", "a.txt", "a.txt.gz", "a.csv", "a.0001"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress, zstd])
def test_json_lines_are_read_whatever_their_name_and_compression(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(LINES))
    assert texts_of(tmp_path / name) == TEXTS


@pytest.mark.parametrize(("suffix", "pack"), [("bz2", bz2.compress), ("zst", zstd), ("gz", bytes)])
def test_compressed_plain_text(tmp_path, suffix, pack, caplog):
    """A browser may decompress a download and keep its name."""
    (tmp_path / f"a.txt.{suffix}").write_bytes(pack(PLAIN))
    assert texts_of(tmp_path / f"a.txt.{suffix}") == TEXTS
    assert ("a.txt.gz: read as .txt, as the content shows" in caplog.text) == (pack is bytes)


@pytest.mark.parametrize("pack", [bz2.compress, zstd])
def test_a_truncated_file_is_one_line(tmp_path, pack):
    text = subprocess.check_output(["/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do echo $i some text; done"])
    (tmp_path / "a.txt").write_bytes(pack(text * 2000)[:-20])
    with pytest.raises(InputError, match=r"a\.txt:\d+: cannot be decompressed"):
        texts_of(tmp_path / "a.txt")


def test_parquet_and_arrays_of_json_without_their_suffix(tmp_path):
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "part-0")
    (tmp_path / "b.txt").write_text(json.dumps([{"text": text} for text in TEXTS], indent=1))
    assert texts_of(tmp_path / "part-0", tmp_path / "b.txt") == TEXTS * 2
    (tmp_path / "part-1").write_bytes(zstd((tmp_path / "part-0").read_bytes()))
    assert texts_of(tmp_path / "part-1") == TEXTS


@pytest.mark.parametrize("text", ['{"a": 1} is JSON.\n\nMore.', "[1] A footnote.\n\nMore.", "Anna: Hi!\nBob: Hi!"])
def test_text_that_begins_like_another_kind_is_text(tmp_path, text):
    (tmp_path / "a.txt").write_text(text)
    assert texts_of(tmp_path / "a.txt") == text.split("\n\n")


def test_an_article_of_wikiextractor_is_a_document(tmp_path):
    articles = [f'<doc id="{n}" url="u?curid={n}" title="T{n}">\nT{n}\n\nOne. Two.\nThree.\n\n</doc>\n' for n in "12"]
    (tmp_path / "wiki_00").write_text("".join(articles))
    assert texts_of(tmp_path / "wiki_00") == ["T1\nOne. Two.\nThree.", "T2\nOne. Two.\nThree."]


def test_folders_are_read_as_their_files(tmp_path):
    (tmp_path / "in/deep").mkdir(parents=True)
    (tmp_path / "in/deep/a.txt").write_bytes(PLAIN)
    (tmp_path / "in/b.jsonl").write_bytes(LINES)
    (tmp_path / "in/.hidden").mkdir()
    (tmp_path / "in/.hidden/a.txt").write_bytes(PLAIN)
    assert texts_of(tmp_path / "in") == texts_of(tmp_path / "in/b.jsonl", tmp_path / "in") == TEXTS * 2
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="the folder contains no files"):
        texts_of(tmp_path / "none")


def test_folders_of_save_to_disk_are_read(tmp_path):
    one = datasets.Dataset.from_dict({"text": [TEXTS[0], "Second\ntext."], "label": [0, 1]})
    one.with_format("torch", columns=["label"]).save_to_disk(str(tmp_path / "one"))  # a format hides columns
    datasets.DatasetDict({"train": one, "test": one}).save_to_disk(str(tmp_path / "several"))
    datasets.DatasetDict({"test": one}).save_to_disk(str(tmp_path / "test"))
    for name in ("one", "several"):
        folder = str(tmp_path / name)
        [source] = text_sources(TextArguments(dataset_name=folder), None)
        assert list(join_pieces(source.read())) == one["text"] == texts_of(folder)
        assert source.checksum() == source.checksum()
        assert texts_of(folder, join_lines=True) == TEXTS
        assert text_sources(TextArguments(join_lines=True), [folder])[0].checksum() != source.checksum()
        assert [row.values for row in hub_rows(folder, None)["train"]] == list(one)
    with pytest.raises(InputError, match="no split 'train'; its splits: test"):
        text_sources(TextArguments(dataset_name=str(tmp_path / "test")), None)


def mail(text: str, kind: str = "plain", charset: str = "utf-8") -> MIMEText:
    return MIMEText(text, kind, charset)


def test_mails_are_decoded(tmp_path):
    both = MIMEMultipart("alternative")
    both.attach(mail("Plain text\n"))
    both.attach(mail("<p>HTML <b>text</b></p>", "html"))
    whole = MIMEMultipart()
    whole["Subject"], whole["From"] = "=?utf-8?b?R3LDvMOfZQ==?=", "a@b.example"
    whole.attach(both)
    attached = mail("an attachment")
    attached.add_header("Content-Disposition", "attachment", filename="a.txt")
    whole.attach(attached)
    assert mail_text(whole.as_bytes()) == "Grüße\n\nPlain text"

    html = mail("<html><style>p {}</style><p>One&nbsp;&amp; two<br>three</p></html>", "html", "latin-1")
    assert mail_text(html.as_bytes()) == "One & two\nthree"
    coded = b"From: a@b\nSubject: S\nContent-Transfer-Encoding: base64\n\n" + base64.encodebytes(b"Hello\n")
    assert mail_text(coded) == "S\n\nHello"
    assert (
        mail_text("From: a\nSubject: Grüße\n\nb".encode())
        == "Grüße\n\nb"
        == mail_text("From: a\nSubject: Grüße\n\nb".encode("latin-1"))
    )
    assert mail_text(b"From: a\nSubject: =?x?q?y?=\nContent-Type: text/plain; charset=none\n\ncaf\xe9") == (
        "=?x?q?y?=\n\ncafé"
    )


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"Return-Path: <a@b>\nReceived: from x\n\tby y\nSubject: z\n\nText", True),
        (b"From a@b Thu Aug 22\nFrom: a@b\nTo: c\n\nText", True),
        (b"Subject: one header\n\nText", False),
        (b"From the beginning,\nto the end.", False),
        (b"Anna: Hello!\nDate: Tomorrow, I think\n", False),
    ],
)
def test_a_mail_is_known_by_its_headers(head, expected):
    assert is_mail(head) == expected


def test_files_of_mails_have_a_document_for_each(tmp_path):
    raw = b"From: a@b\nSubject: One\n\nText.\n\nFrom here on.\n"
    box = b"".join(b"From a@b Thu Aug 22 12:00:00 2002\n" + raw + b"\n" for _ in range(2))
    (tmp_path / "0001.7c5").write_bytes(raw)
    (tmp_path / "inbox").write_bytes(codecs.BOM_UTF8 + box)
    expected = ["One\n\nText.\n\nFrom here on."]
    assert list(read_documents(str(tmp_path / "0001.7c5"))) == texts_of(tmp_path / "0001.7c5") == expected
    assert list(read_documents(str(tmp_path / "inbox"))) == expected * 2
    assert [row.values for row in read_rows(str(tmp_path / "inbox"))] == [{"text": expected[0]}] * 2
    (tmp_path / "a.eml").write_bytes(raw.decode().encode("utf-16"))
    with pytest.raises(InputError, match="not a mail: it begins with zero bytes"):
        list(read_documents(str(tmp_path / "a.eml")))
    (tmp_path / "a.txt").write_text("One\n\ntwo")
    assert list(read_documents(str(tmp_path / "a.txt"))) == ["One\n\ntwo"]


ROWS = [("Good, really good; or so", "ham"), ("Well: 1,5, no", "spam"), ("Why? | Who", "ham"), ("One; two", "spam")]


@pytest.mark.parametrize("separator", ["\t", ";", ",", "|"])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.txt", "a"])
@pytest.mark.parametrize("header", [True, False])
def test_the_separator_is_found(tmp_path, separator, name, header):
    rows = [(text.replace(separator, ""), label) for text, label in ROWS * 9]
    lines = [separator.join(row) for row in [("text", "label")] * header + rows]
    (tmp_path / name).write_text("\n".join(lines))
    assert [tuple(row.values.values()) for row in read_rows(str(tmp_path / name))] == rows
    assert next(read_rows(str(tmp_path / name))).line == 1 + header


@pytest.mark.parametrize("separator", ["\t", ";", ","])
@pytest.mark.parametrize("name", ["a", "a.txt", "a.data", "a.conll"])
def test_a_table_is_known_by_its_header(tmp_path, separator, name):
    end = " " if separator == "\t" else "\n"  # a row with tabs is one line
    rows = [["x1", f"Good, really{end}good; or so", "ham"], ["x2", 'So "it" is', "spam"]]
    with open(tmp_path / name, "w", newline="") as file:
        csv.writer(file, delimiter=separator).writerows([["id", "Text", "label"], *rows])
    assert [list(row.values.values()) for row in read_rows(str(tmp_path / name))] == rows
    assert texts_of(tmp_path / name) == [text for _, text, _ in rows]


def test_semicolons_in_each_line_make_a_table(tmp_path):
    rows = [f"{number};Ein Satz, {number}." for number in range(6)]
    (tmp_path / "a.txt").write_text("\n".join(["Nummer;Beitrag", *rows]))
    assert texts_of(tmp_path / "a.txt", text_column="Beitrag") == [row[2:] for row in rows]
    (tmp_path / "b.txt").write_text("text\n" + "One; two.\n" * 4)
    assert len(texts_of(tmp_path / "b.txt")) == 1


def test_text_with_commas_is_no_table(tmp_path):
    for text in ("Text, and more.\n\nOne, two.", "Content, questions\nA, b, c\nD", "text\nlabel\nmore"):
        (tmp_path / "a.txt").write_text(text)
        assert texts_of(tmp_path / "a.txt") == text.split("\n\n")


def test_quotes_of_a_file_that_is_cut_off(tmp_path):
    (tmp_path / "a.tsv").write_text('label\ttext\nham\t"Say ""so"""\nham\t"Is ')
    with pytest.raises(InputError, match=r"a\.tsv:3: not CSV: unexpected end of data"):
        list(read_rows(str(tmp_path / "a.tsv")))


def test_separators_that_are_named(tmp_path):
    (tmp_path / "excel.csv").write_text("sep=;\ntext;score\nHello, you;1,5\n")
    [row] = read_rows(str(tmp_path / "excel.csv"))
    assert row.values == {"text": "Hello, you", "score": "1,5"}
    assert row.line == 3
    (tmp_path / "a.csv").write_text("1,3;2,0\n4,5;6,7\n")
    assert [row.values for row in read_rows(str(tmp_path / "a.csv"), columns=["a", "b"])][1] == {
        "a": "4,5",
        "b": "6,7",
    }
    assert [len(row.values) for row in read_rows(str(tmp_path / "a.csv"), separator=",")] == [3]
    (tmp_path / "tabs.csv").write_text("a,b\tc\n1\t2\n")
    assert [row.values for row in read_rows(str(tmp_path / "tabs.csv"), separator="tab")] == [{"a,b": "1", "c": "2"}]


def test_a_file_without_a_header_has_the_columns_that_are_given(tmp_path):
    (tmp_path / "a.tsv").write_text("7\tham\tHello\n8\tspam\tWin\n")
    columns = ["id", "label", "text"]
    assert [row.values["text"] for row in read_rows(str(tmp_path / "a.tsv"), columns=columns)] == ["Hello", "Win"]
    (tmp_path / "c.csv").write_text("Hello\nWin\n")
    assert next(read_rows(str(tmp_path / "c.csv"), columns=columns)).values == {"text": "Hello"}
    (tmp_path / "b.tsv").write_text("number\tkind\ttext\n8\tspam\tWin\n")
    assert [list(row.values) for row in read_rows(str(tmp_path / "b.tsv"), columns=columns)] == [
        ["number", "kind", "text"]
    ]


def test_a_wide_table_without_a_header_has_numbered_columns(tmp_path):
    (tmp_path / "a.csv").write_text("3,Wall St.,Oil\n4,Chips,Sold\n3,Rates,Up\n3,A,B\n")
    rows = [row.values for row in read_rows(str(tmp_path / "a.csv"))]
    assert len(rows) == 4
    assert rows[0] == {"column 1": "3", "column 2": "Wall St.", "column 3": "Oil"}


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (b"text,label\rOne,1\rTwo,0\r", "its lines end as on an old Mac"),
        (b"{\\rtf1 text}", "a document in RTF"),
        (b"a.txt".ljust(257, b"\0") + b"ustar", "a tar archive"),
        (b"<!doctype HTML><html>", "an HTML page"),
        (b"#FORMAT=WebAnno TSV 3.3\n", "a TSV of WebAnno or INCEpTION"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
    ],
)
def test_what_is_no_text_is_named(tmp_path, head, what):
    (tmp_path / "a.txt").write_bytes(head)
    with pytest.raises(InputError, match=what):
        kind_of(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ('["Anna", "left"]', ["Anna", "left"]), ("['Anna', \"it's\"]", ["Anna", "it's"]),
        ("['Anna' \"it's\"\n 'left']", ["Anna", "it's", "left"]), ("[0 1 1]", [0, 1, 1]), ("{{}}", None),
        ("[null, true]", [None, True]), (["a"], ["a"]), ("[Anna]", None), ("Anna", None), (5, None), ("[]", []),
    ],
)  # fmt: skip
def test_lists_in_cells(cell, expected):
    assert list_cell(cell) == expected
