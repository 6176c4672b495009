"""Reads questions on contexts (SQuAD's JSON, JSON lines, Parquet, the Hub) and SQuAD's prediction and odds files."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from bert_hf.config.files import parse_json
from bert_hf.data.text.input_files import kind_of
from bert_hf.data.text.readers import read_lines
from bert_hf.data.text.tables import Row, parsed_cell, read_rows
from bert_hf.errors import InputError

_SHAPE = "give SQuAD's JSON (data, paragraphs, qas) or rows of id, context, question, answers"


class Answer(NamedTuple):
    """A gold answer: `text` is at character `start` of the context."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Question:
    """A question on a context with its gold answers: None: not known; (): it cannot be answered from the context."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] | None
    title: str = ""  # of the article that the context is from
    file: str = ""
    line: int | None = None  # of a file of rows


def question_rows(path: str, encoding: str | None = None, separator: str | None = None) -> Iterator[Row]:
    """Yield the questions of a file as rows: SQuAD 1.1 or 2.0 JSON, JSON lines, Parquet or tables, also compressed."""
    is_json = kind_of(path) in (".json", ".jsonl") and encoding is None  # `json_rows` reads UTF-8
    yield from json_rows(path) if is_json else read_rows(path, encoding, separator=separator)


def json_rows(path: str) -> Iterator[Row]:
    """Yield the questions of SQuAD's JSON as rows; flat rows under `data`, in a list or as lines stay as they are."""
    try:
        content = read_json(path)
        is_list = any("qas" in part for part in content)  # of paragraphs; SQuAD's object has keys, `data` among them
        articles = content if is_list else content["data"]
    except (InputError, KeyError, TypeError):  # lines, or a list of flat rows
        yield from read_rows(path)
        return

    try:
        for article in articles:
            if "paragraphs" not in article and "qas" not in article:
                yield Row(dict(article), path)
                continue
            for paragraph in article.get("paragraphs", [article]):  # in a list of paragraphs each is its own article
                shared = {"context": paragraph["context"], "title": article.get("title", "")}
                yield from (Row({**fields, **shared}, path) for fields in paragraph["qas"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"not SQuAD's JSON: {error!r}", where=path, remedy=_SHAPE) from None


def questions_of_rows(
    rows: Iterable[Row], answers_are: Literal["needed", "optional", "ignored"] = "needed"
) -> list[Question]:
    """Return the questions of rows.

    A row has `id`, `context`, `question`, and `answers` as `{"text": […], "answer_start": […]}` or as a list of
    `{"text": …, "answer_start": …}`; an empty list means that the context does not hold the answer.

    Args:
        answers_are: "needed": every question has `answers`, if only []. "optional": if no question has any, they are
            not known. "ignored": they are not read, nor is an `id` needed.

    Raises:
        InputError: with the file and the question's id or its line: another shape, an id that occurs twice, an answer
            that is not in its context (or more than once, but not at `answer_start`).
    """
    questions: list[Question] = []
    ids: set[str] = set()
    for row in rows:
        question = _question(row, answers_are)
        if question.id in ids and answers_are != "ignored":
            raise row.error(f"question {question.id} has a duplicate id", "give each question its own id")
        ids.add(question.id)
        questions.append(question)
    if answers_are == "ignored" or (answers_are == "optional" and not any(each.answers for each in questions)):
        questions = [replace(question, answers=None) for question in questions]
    return questions


def _question(row: Row, answers_are: str) -> Question:
    """Return the question of a row, checked; see `questions_of_rows`."""
    values = row.values
    texts = [values.get("question"), values.get("context")]
    question_id = values.get("id", row.line if answers_are == "ignored" else None)
    has_id = isinstance(question_id, str | int) or answers_are == "ignored"
    if not has_id or not all(isinstance(text, str) for text in texts):
        raise row.error(f"question {values.get('id')}: id, question or context is missing", _SHAPE)
    question, context = map(str, texts)

    reads_answers = answers_are == "needed" or (answers_are == "optional" and values.get("answers") is not None)
    pairs = answers_with_starts(row) if reads_answers else []
    answers = tuple(_located(text, start, context, row) for text, start in pairs)
    title = str(values.get("title") or "")
    return Question(str(question_id), question, context, answers, title, row.where, row.line)


def answers_with_starts(row: Row) -> list[tuple[str, int | None]]:
    """Return the text and the `answer_start` of each answer, from either shape (see `questions_of_rows`)."""
    if str(row.values.get("is_impossible")).lower() == "true":  # also in a table
        return []
    answers = parsed_cell(row.values.get("answers"))
    pairs: list[tuple[Any, Any]] = [(None, None)]  # an invalid one, where neither shape can be read
    try:
        if isinstance(answers, dict):
            texts = answers["text"]
            pairs = list(zip(texts, answers.get("answer_start", [None] * len(texts)), strict=True))
        else:
            pairs = [(answer["text"], answer.get("answer_start")) for answer in answers]
    except (KeyError, TypeError, ValueError, AttributeError):
        pass

    if not all(isinstance(text, str) and isinstance(start, int | None) for text, start in pairs):
        what = f"question {row.values.get('id')} has no valid 'answers'"
        raise row.error(what, "give text and answer_start of each answer, or [] without an answer")
    return pairs


def _located(text: str, start: int | None, context: str, row: Row) -> Answer:
    """Return the answer at `start`, or where its text occurs if it does so once; else raise the row's error."""
    if text.strip():
        if start is not None and start >= 0 and context.startswith(text, start):
            return Answer(text, start)
        if context.count(text) == 1:
            return Answer(text, context.find(text))

    what = f"question {row.values['id']}: the answer {text[:60]!r} is not in its context at answer_start ({start})"
    raise row.error(what, "fix or remove the question")


def read_by_id(path: str, *types: type) -> dict[str, Any]:
    """Read a JSON object from question id to values of these types: answers, or odds that there is no answer."""
    values = read_json(path)
    if not isinstance(values, dict) or not all(type(value) in types for value in values.values()):
        what = f"not a JSON object from question id to {types[0].__name__}"
        raise InputError(what, where=path, remedy="give the file of one run")
    return values


def read_json(path: str) -> Any:
    """Read the content of a JSON file, also .gz and .xz."""
    text = "\n".join(line for _, line in read_lines(path))
    return parse_json(text, path, "check that the file is complete")
