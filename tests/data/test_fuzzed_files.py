"""5,000 damaged or unusual files made from readable ones: each is read right, or refused in one line.

`PYTHONPATH=tests python tests/data/test_fuzzed_files.py [files]` prints the table of mutations and outcomes.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny import tiny_tokenizer

from bert_hf.config.arguments import TextArguments
from bert_hf.console import format_table, logger
from bert_hf.data.corpus.requested_corpus import text_sources
from bert_hf.data.text.readers import join_pieces
from bert_hf.errors import InputError
from bert_hf.finetuning.heads.classification import ClassificationHead
from bert_hf.finetuning.heads.head import rows_of_files
from bert_hf.finetuning.heads.multiple_choice import MultipleChoiceHead
from bert_hf.finetuning.heads.question_answering import QuestionAnsweringHead
from bert_hf.finetuning.heads.token_classification import TokenClassificationHead

FILES, SEED = 5_000, 0
RIGHT, REFUSED, BEGINNING, OTHER = "right", "refused", "beginning", "other rows"
WRONG, TRACEBACK = "WRONG", "TRACEBACK"


# ---- rows

WORDS = "Fuß café naïve “quoted” it's well; so, on a|b 12 1,5 No. – end Über the and of to in is".split()


def sentence(rng: random.Random, number: int) -> str:
    return " ".join(
        [f"Row {number}", *rng.choices(WORDS, k=rng.randrange(3, 12)), rng.choice(['"Hi," he said', "end."])]
    )


def labelled(rng: random.Random) -> list[dict]:
    rows = [{"id": f"n{n}", "text": sentence(rng, n), "label": rng.choice(["ham", "spam"])} for n in range(30)]
    return [*rows, {"id": "n98", "text": "a", "label": "ham"}, {"id": "n99", "text": "b", "label": "spam"}]


def tagged(rng: random.Random) -> list[tuple[list[str], list[str]]]:
    made = []
    for number in range(12):
        words = [f"Word{number}", *rng.choices(["Fuß", "it's", "naïve", "the", "of", "–"], k=rng.randrange(2, 8)), "."]
        made.append((words, ["B-PER", *rng.choices(["O", "I-PER", "B-ORG"], k=len(words) - 2), "O"]))
    return made


def choices(rng: random.Random) -> list[dict]:
    names = ("sent1", "sent2", "ending0", "ending1", "label")
    return [dict(zip(names, (sentence(rng, n), "He", f"sits, {n}", "stands", n % 2), strict=True)) for n in range(20)]


def questions(rng: random.Random) -> list[dict]:
    made = []
    for number in range(15):
        answers = {"text": [f"Row {number}"], "answer_start": [0]} if number % 3 else {"text": [], "answer_start": []}
        made.append({"id": f"q{number}", "question": "Who?", "context": sentence(rng, number), "answers": answers})
    return made


# ---- files


@dataclass
class Written:
    """How rows are written to a file; mutations change it."""

    suffix: str = ".csv"
    separator: str = ","
    quoting: Any = csv.QUOTE_MINIMAL
    shuffled: bool = False  # columns in another order
    end: str = "\n"
    encoding: str = "utf-8"
    named_encoding: str | None = None  # as the user names it
    bom: bool = False
    packed: str = ""
    tail: str = ""
    damage: list[Callable[[bytes], bytes]] = field(default_factory=list)


@dataclass
class Kind:
    """A kind of readable files: its rows, how they are written and read, and which mutations it can have."""

    make: Callable[[random.Random], Any]
    write: Callable[[Any, Written, random.Random], str | bytes]
    read: Callable[[str, str | None], list]
    expected: Callable[[Any], list]
    suffix: str
    separators: str = ""
    columns: bool = False
    encoded: bool = True  # rows have --encoding


def by_separators(objects: list[dict], how: Written, header: bool = True) -> str:
    file = io.StringIO()
    writer = csv.writer(file, delimiter=how.separator, lineterminator="\n", quoting=how.quoting)
    writer.writerows([list(objects[0])] * header + [list(row.values()) for row in objects])
    return file.getvalue()


def reordered(objects: list[dict], how: Written, rng: random.Random) -> list[dict]:
    names = list(objects[0])
    if how.shuffled:
        rng.shuffle(names)
    return [{name: row[name] for name in names} for row in objects]


def table(rows, how, rng):
    return by_separators(reordered(rows, how, rng), how)


def json_cells(rows, how, rng):
    cells = [{name: json.dumps(own) if isinstance(own, dict) else own for name, own in row.items()} for row in rows]
    return table(cells, how, rng)


def without_header(rows, how, rng):
    pairs = [{"label": row["label"], "text": row["text"].replace("\t", " ")} for row in rows]
    return by_separators(reordered(pairs, how, rng), how, header=False)


def decimals(rows, how, rng):
    return table(
        [{**row, "label": f"{number / 4:.2f}".replace(".", ",")} for number, row in enumerate(rows)], how, rng
    )


def lines(rows, how, rng):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in reordered(rows, how, rng))


def array(rows, how, rng):
    return json.dumps(reordered(rows, how, rng), indent=rng.choice([None, 1]), ensure_ascii=False)


def parquet(rows, how, rng):
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(reordered(rows, how, rng)), file)
    return file.getvalue()


def conll(rows, how, rng, columns=("word", "tag")):
    names = list(columns)
    if how.shuffled:
        rng.shuffle(names)
    parts = []
    for words, tags in rows:
        for number, (word, tag) in enumerate(zip(words, tags, strict=True), 1):
            own = {"number": str(number), "word": word, "pos": "NN" if word[0] == "W" else "DT", "tag": tag}
            parts.append(how.separator.join(own[name] for name in names) + "\n")
        parts.append("\n")
    return "".join(parts)


def conll_numbered(rows, how, rng):
    return conll(rows, how, rng, ("number", "word", "pos", "tag"))


def word_rows(rows, how, rng):
    objects = [
        {"sentence_id": f"s{number}", "word": word, "ner": tag}
        for number, (words, tags) in enumerate(rows)
        for word, tag in zip(words, tags, strict=True)
    ]
    return table(objects, how, rng)


def token_lists(rows, how, rng):
    return lines([{"tokens": words, "ner_tags": tags} for words, tags in rows], how, rng)


def squad(rows, how, rng):
    paragraphs = []
    for row in rows:
        pairs = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
        own = [{"text": text, "answer_start": start} for text, start in pairs]
        qas = [{"id": row["id"], "question": row["question"], "answers": own}]
        paragraphs.append({"context": row["context"], "qas": qas})
    return json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}, ensure_ascii=False)


def plain(rows, how, rng):
    return "\n\n".join(row["text"] for row in rows) + "\n"


def articles(rows, how, rng):
    return "".join(f'<doc id="{row["id"]}" url="u" title="t">\n{row["text"]}\n</doc>\n' for row in rows)


def mbox(rows, how, rng):
    head = "From a@b Thu Aug 22 12:00:00 2002\nFrom: a@b\nSubject: S\nContent-Type: text/plain; charset={}\n\n"
    return "".join(head.format(how.encoding) + row["text"] + "\n\n" for row in rows)


def rows_of(head_class: Any, tokenizer: Any = None) -> Callable:
    def read(path: str, encoding: str | None) -> Any:
        head = head_class(tokenizer, {})
        return head.read(list(rows_of_files(head, [path], encoding)))

    return read


def read_labelled(path, encoding):
    rows = rows_of(ClassificationHead)(path, encoding)
    return list(zip(rows.texts, rows.labels, strict=True))


def read_numbers(path, encoding):
    rows = rows_of(ClassificationHead)(path, encoding)
    return list(zip(rows.texts, rows.numbers().tolist(), strict=True))


def read_tagged(path, encoding):
    rows = rows_of(TokenClassificationHead, tiny_tokenizer())(path, encoding)
    return list(zip(rows.words, rows.labels(), strict=True))


def read_choices(path, encoding):
    return [row[:4] for row in rows_of(MultipleChoiceHead)(path, encoding)]


def read_questions(path, encoding):
    return [(row.id, row.context, row.answers) for row in rows_of(QuestionAnsweringHead)(path, encoding)]


def read_texts(path, encoding):
    arguments = TextArguments(train_file=[path], join_lines=False)
    return [text for source in text_sources(arguments, [path]) for text in join_pieces(source.read())]


def pairs_of(rows):
    return [(row["text"], row["label"]) for row in rows]


def numbers_of(rows):
    return [(row["text"], number / 4) for number, row in enumerate(rows)]


def choices_of(rows):
    return [(row["sent1"], row["sent2"], (row["ending0"], row["ending1"]), row["label"]) for row in rows]


def questions_of(rows):
    answers = [tuple(zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)) for row in rows]
    return [(row["id"], row["context"], own) for row, own in zip(rows, answers, strict=True)]


def texts_of(rows):
    return [row["text"] for row in rows]


def mails_of(rows):
    return [f"S\n\n{row['text']}" for row in rows]


LABELLED = (labelled, read_labelled, pairs_of)
TAGGED = (tagged, read_tagged, list)
CHOICES = (choices, read_choices, choices_of)
QUESTIONS = (questions, read_questions, questions_of)
TEXTS = (labelled, read_texts, texts_of)


def kind(of: tuple, write: Callable, suffix: str, separators: str = "", columns: bool = False, **more: Any) -> Kind:
    make, read, expected = of
    return Kind(make, write, read, expected, suffix, separators, columns, **more)


KINDS = {
    "labels .csv": kind(LABELLED, table, ".csv", ",;\t|", True),
    "labels .tsv": kind(LABELLED, table, ".tsv", "\t;,|", True),
    "labels, no header": kind(LABELLED, without_header, ".tsv", "\t;,|", True),
    "labels .jsonl": kind(LABELLED, lines, ".jsonl", columns=True),
    "labels .json": kind(LABELLED, array, ".json", columns=True),
    "labels .parquet": kind(LABELLED, parquet, ".parquet", columns=True, encoded=False),
    "decimal commas": kind((labelled, read_numbers, numbers_of), decimals, ".csv", ";\t|,", True),
    "CoNLL": kind(TAGGED, conll, ".conll", "\t ", True),
    "CoNLL, numbered": kind(TAGGED, conll_numbered, ".conll", "\t ", True),
    "a row per word": kind(TAGGED, word_rows, ".csv", ",;\t|", True),
    "lists of tokens": kind(TAGGED, token_lists, ".jsonl", columns=True),
    "choices .jsonl": kind(CHOICES, lines, ".jsonl", columns=True),
    "choices .csv": kind(CHOICES, table, ".csv", ",;\t|", True),
    "SQuAD": kind(QUESTIONS, squad, ".json", encoded=False),
    "questions .jsonl": kind(QUESTIONS, lines, ".jsonl", columns=True),
    "questions .csv": kind(QUESTIONS, json_cells, ".csv", ",;\t|", True),
    "plain text": kind(TEXTS, plain, ".txt", encoded=False),
    "texts .jsonl": kind(TEXTS, lines, ".jsonl", columns=True, encoded=False),
    "articles": kind(TEXTS, articles, "", encoded=False),
    "mails": kind((labelled, read_texts, mails_of), mbox, ".mbox", encoded=False),
}


# ---- mutations

PACKERS = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": lambda raw: bytes(pa.compress(raw, "zstd", asbytes=True)),
}
SUFFIXES = (".csv", ".tsv", ".txt", ".jsonl", ".json", ".data", "", ".eml")
KEEPING = {  # the rows stay what they are
    "nothing": lambda kind, rng: {},
    "separator": lambda kind, rng: {"separator": rng.choice(kind.separators)} if kind.separators else {},
    "column order": lambda kind, rng: {"shuffled": kind.columns},
    "quotes": lambda kind, rng: {"quoting": csv.QUOTE_ALL},
    "encoding": lambda kind, rng: encodings(kind, rng, named=True),
    "BOM": lambda kind, rng: {"bom": True},
    "CRLF": lambda kind, rng: {"end": "\r\n"},
    "blank lines at the end": lambda kind, rng: {"tail": "\n" * rng.randrange(1, 4)},
    "compression": lambda kind, rng: {"packed": rng.choice(list(PACKERS))},
    "compression, no suffix": lambda kind, rng: {"packed": rng.choice(list(PACKERS)) + "!"},
    "suffix": lambda kind, rng: {"suffix": rng.choice(SUFFIXES)},
}
DAMAGING = {
    "cut": lambda kind, rng: {"damage": [lambda raw: raw[: rng.randrange(len(raw))]]},
    "cut when compressed": lambda kind, rng: {
        "packed": rng.choice(list(PACKERS)), "damage": [lambda raw: raw[: rng.randrange(len(raw))]]
    },
    "another byte": lambda kind, rng: {"damage": [lambda raw: other_byte(raw, rng)]},
    "a line missing": lambda kind, rng: {"damage": [lambda raw: without_line(raw, rng)]},
    "a separator missing": lambda kind, rng: {"damage": [lambda raw: without_separator(raw, kind, rng)]},
    "encoding not named": lambda kind, rng: encodings(kind, rng, named=False),
}  # fmt: skip


def encodings(kind: Kind, rng: random.Random, named: bool) -> dict:
    encoding = rng.choice(["cp1252", "utf-16", "utf-16-le"])
    if named and not kind.encoded:
        return {}
    return {"encoding": encoding, "named_encoding": encoding if named else None}


def other_byte(raw: bytes, rng: random.Random) -> bytes:
    if raw.startswith((b"PAR1", b"\x28\xb5\x2f\xfd")):  # without checksums: any text may change
        return raw
    at = rng.randrange(len(raw))
    return raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :]


def without_line(raw: bytes, rng: random.Random) -> bytes:
    parts = raw.splitlines(keepends=True)
    del parts[rng.randrange(len(parts))]
    return b"".join(parts)


def without_separator(raw: bytes, kind: Kind, rng: random.Random) -> bytes:
    mark = (kind.separators[:1] or ",").encode()
    places = [at for at in range(len(raw)) if raw[at : at + 1] == mark]
    at = rng.choice(places) if places else 0
    return raw[:at] + raw[at + 1 :]


def render(kind: Kind, rows: Any, how: Written, rng: random.Random) -> bytes:
    content = kind.write(rows, how, rng)
    if isinstance(content, str):
        content = (content + how.tail).replace("\n", how.end)
        bom = "\ufeff" if how.bom and how.encoding != "cp1252" else ""
        raw = (bom + content).encode(how.encoding)
    else:
        raw = content
    packed = PACKERS[how.packed.rstrip("!")](raw) if how.packed else raw
    for damage in how.damage:
        packed = damage(packed)
    return packed


# ---- outcomes


def outcome(kind: Kind, path: str, encoding: str | None, expected: list, damaged: bool) -> str:
    try:
        read = kind.read(path, encoding)
    except InputError as error:
        return REFUSED if "\n" not in str(error) else TRACEBACK
    except Exception:
        return TRACEBACK
    if read == expected:
        return RIGHT
    if not damaged:
        return WRONG
    whole = [row for row in read if row in expected]
    if len(read) - len(whole) <= 3:  # a sentence whose name changes in the middle becomes three
        return BEGINNING if whole == expected[: len(whole)] else OTHER
    return WRONG


@dataclass
class Result:
    """What became of one file."""

    kind: str
    mutations: tuple[str, ...]
    outcome: str
    number: int


def fuzz(folder: Path, files: int = FILES, seed: int = SEED, only: int | None = None) -> list[Result]:
    """Write and read the files; `only` one of them, by its number."""
    results = []
    for number in range(files):
        rng = random.Random(f"{seed} {number}")
        name = rng.choice(list(KINDS))
        own = KINDS[name]
        mutations = [rng.choice([*KEEPING, *DAMAGING])]
        if rng.random() < 0.3:
            mutations.insert(0, rng.choice(list(KEEPING)))
        how = Written(own.suffix, own.separators[:1] or ",")
        for mutation in mutations:
            for attribute, value in {**KEEPING, **DAMAGING}[mutation](own, rng).items():
                setattr(how, attribute, value)
        if only is not None and number != only:
            continue
        rows = own.make(rng)
        packed = "" if how.packed.endswith("!") else how.packed
        path = folder / f"{number}{how.suffix}{packed}"
        path.write_bytes(render(own, rows, how, rng))
        damaged = bool(how.damage) or (how.encoding != "utf-8" and how.named_encoding is None)
        found = outcome(own, str(path), how.named_encoding, own.expected(rows), damaged)
        results.append(Result(name, tuple(mutations), found, number))
        if only is None:
            path.unlink()
    return results


def outcomes(results: list[Result]) -> str:
    """Return the table: a row per mutation, a column per outcome; of two mutations the last one counts."""
    columns = (RIGHT, REFUSED, BEGINNING, OTHER, WRONG, TRACEBACK)
    counts = Counter((result.mutations[-1], result.outcome) for result in results)
    table = [["mutation", *columns]]
    for mutation in (*KEEPING, *DAMAGING):
        table.append([mutation, *(f"{counts[mutation, column]:,}" for column in columns)])
    return "\n".join(format_table(table))


@pytest.mark.slow
def test_each_file_is_read_right_or_refused_in_one_line(tmp_path):
    results = fuzz(tmp_path)
    print(outcomes(results))
    assert [result for result in results if result.outcome in (WRONG, TRACEBACK)] == []
    kept = Counter(result.outcome for result in results if set(result.mutations) <= KEEPING.keys())
    assert kept[RIGHT] > 0.9 * kept.total()


if __name__ == "__main__":
    logger.setLevel("WARNING")
    with tempfile.TemporaryDirectory() as folder:
        results = fuzz(Path(folder), int(sys.argv[1]) if len(sys.argv) > 1 else FILES)
    print(outcomes(results))
    for result in results:
        if result.outcome in (WRONG, TRACEBACK):
            print(result.number, result.kind, *result.mutations, result.outcome)
