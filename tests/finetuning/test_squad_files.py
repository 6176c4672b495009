"""Questions from every shape of file, and one line for each that is wrong."""

import gzip
import json
import lzma

import datasets
import pytest

from bert_hf.errors import InputError
from bert_hf.finetuning.rows.questions import Answer, question_rows, questions_of_rows

CONTEXT = "Zoë paid 3 and 30 euros."


def row(name="a", answers=(("30", 15),), context=CONTEXT):
    """A question as a row of JSON lines."""
    texts = {"text": [text for text, _ in answers], "answer_start": [start for _, start in answers]}
    return {"id": name, "title": "Money", "context": context, "question": "How much?", "answers": texts}


def squad(*rows):
    """The official shape: a paragraph a row."""
    paragraphs = []
    for each in rows:
        pairs = zip(each["answers"]["text"], each["answers"]["answer_start"], strict=True)
        answers = [{"text": text, "answer_start": start} for text, start in pairs]
        fields = {"id": each["id"], "question": each["question"], "answers": answers, "is_impossible": not answers}
        paragraphs.append({"context": each["context"], "qas": [fields]})
    return {"version": "v2.0", "data": [{"title": "Money", "paragraphs": paragraphs}]}


def write(tmp_path, name, content):
    text = content if isinstance(content, str) else json.dumps(content)
    compress = {"xz": lzma.compress, "gz": gzip.compress}.get(name.rpartition(".")[2], bytes)
    (tmp_path / name).write_bytes(compress(text.encode()))
    return str(tmp_path / name)


def lines(*rows):
    return "".join(json.dumps(each) + "\n" for each in rows)


def read_questions(path):
    return questions_of_rows(list(question_rows(path)))


ROWS = [row(), row("b", ())]


def test_a_table_has_lists_of_answers_as_json(tmp_path):
    """As `predict` writes them; `[]` was an error."""
    answers = ([{"text": "30", "answer_start": 15}], [], {"text": ["30"], "answer_start": [15]})
    cells = [json.dumps(own).replace('"', '""') for own in answers]
    table = "".join(f'{name},How much?,{CONTEXT},"{cell}"\n' for name, cell in zip("abc", cells, strict=True))
    questions = read_questions(write(tmp_path, "a.csv", f"id,question,context,answers\n{table}"))
    assert [question.answers for question in questions] == [(Answer("30", 15),), (), (Answer("30", 15),)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", squad(*ROWS)),
        ("a.jsonl", squad(*ROWS)),
        ("a.txt", squad(*ROWS)),
        ("a.json", json.dumps(squad(*ROWS), indent=1)),
        ("a.json.xz", squad(*ROWS)),
        ("a.json.gz", squad(*ROWS)),
        ("a.jsonl", lines(*ROWS)),
        ("a.jsonl.xz", lines(*ROWS)),
        ("a.parquet", None),
        ("a.json", lines(*ROWS)),
        ("a.json", ROWS),
        ("a.json", {"data": ROWS}),
        ("a.json", [{**paragraph, "title": "Money"} for paragraph in squad(*ROWS)["data"][0]["paragraphs"]]),
        ("a.jsonl", lines(row(), {**row("b"), "is_impossible": "True"})),  # as in a table; its answers are plausible
        ("a.jsonl", lines(row(), {**row("b"), "answers": []})),
        ("a.jsonl", lines({**row(), "answers": [{"text": "30", "answer_start": 15}]}, row("b", ()))),
    ],
)
def test_every_shape(tmp_path, name, content):
    if content is None:
        datasets.Dataset.from_list(ROWS).to_parquet(str(tmp_path / name))
    first, second = read_questions(write(tmp_path, name, content) if content else str(tmp_path / name))
    assert (first.id, first.question, first.context, first.title) == ("a", "How much?", CONTEXT, "Money")
    assert first.answers == (Answer("30", 15),)
    assert (second.id, second.answers) == ("b", ())


def test_answer_start_is_corrected_where_the_text_occurs_once(tmp_path):
    found = read_questions(write(tmp_path, "a.jsonl", lines(row(answers=(("30", 14), ("Zoë", 0))))))
    assert found[0].answers == (Answer("30", 15), Answer("Zoë", 0))
    without = {**row(), "answers": {"text": ["30"]}}
    assert read_questions(write(tmp_path, "b.jsonl", lines(without)))[0].answers[0].start == 15


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", lines(row(answers=(("3", 4),))), "a.jsonl:1: question a: the answer '3' is not in its context at"),
        ("a.jsonl", lines(row(), row("b", (("31", 15),))), "a.jsonl:2: question b: the answer '31' is not in its"),
        ("a.jsonl", lines(row(answers=((" ", 3),))), "a.jsonl:1: question a: the answer ' ' is not in its"),
        ("a.jsonl", lines(row(), row()), "a.jsonl:2: question a has a duplicate id"),
        ("a.jsonl", lines(row(answers=(("30", "15"),))), "a.jsonl:1: question a has no valid 'answers'"),
        ("a.jsonl", lines({**row(), "id": None}), "a.jsonl:1: question None: id, question"),
        ("a.json", {"data": [{"title": "x"}]}, "a.json: question None: id, question"),
        ("a.json", {"data": [{"paragraphs": [{"qas": []}]}]}, "a.json: not SQuAD's JSON: KeyError('context')"),
        ("a.json", "7", "a.json:1: not a JSON object"),
        ("a.csv", "a,b\n1,2\n", "a.csv:2: question None: id, question"),
    ],
)
def test_errors_name_the_question(tmp_path, name, content, expected):
    with pytest.raises(InputError) as error:
        read_questions(write(tmp_path, name, content))
    assert str(error.value).replace(f"{tmp_path}/", "").startswith(expected)
