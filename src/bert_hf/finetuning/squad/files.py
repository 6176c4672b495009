"""Reads questions on contexts (SQuAD's JSON, JSON lines, the Hub) and SQuAD's prediction and odds files."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from bert_hf.config.files import check_input_file, decode_utf8, parse_json
from bert_hf.data.text.input_files import access_errors, expand, is_url, kind_of, open_bytes
from bert_hf.data.text.readers import read_rows, whole_text
from bert_hf.data.text.sources import load_hub
from bert_hf.errors import InputError

_SHAPE = "give SQuAD's JSON (data, paragraphs, qas) or JSON lines of id, context, question, answers"


class Answer(NamedTuple):
    """A gold answer: `text` is at character `start` of the context.

    `corrected`: the file named another position, where the text is not; it occurs once in the context.
    """

    text: str
    start: int
    corrected: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """A question on a context with its gold answers; without answers it cannot be answered from the context."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]
    title: str = ""  # of the article that the context is from
    file: str = ""
    line: int | None = None  # of a file of JSON lines
    labelled: bool = True  # False: whether it has an answer is unknown


# ---- questions


class _Demands(NamedTuple):
    """Conditions on the answers; see `read_questions`."""

    check_answers: bool = True
    need_answers: bool = True


def read_questions(files: list[str], check_answers: bool = True, need_answers: bool = True) -> list[Question]:
    """Reads SQuAD 1.1 or 2.0 JSON and JSON lines, also .gz and .xz.

    A row of JSON lines has `id`, `context`, `question`, and `answers` as `{"text": […], "answer_start": […]}` or as a
    list of `{"text": …, "answer_start": …}`; an empty list means that the context does not hold the answer.

    Args:
        files: paths, URLs or globs.
        check_answers: every answer has to be in its context. Metrics do not need that, training does.
        need_answers: every question has to have `answers`, if only []. Those that are only predicted need none.

    Raises:
        InputError: with the file and the question's id or its place in the file: another shape, an id that occurs
            twice, an answer that is not in its context (or more than once, and not where `answer_start` says).
    """
    demands = _Demands(check_answers, need_answers)
    found: dict[str, Question] = {}
    for path in expand(files):
        before = len(found)
        for question in _read_file(path, demands):
            _add(found, question)
        if len(found) == before:
            raise InputError("no questions in it", where=path, remedy=_SHAPE)
    return list(found.values())


def _add(found: dict[str, Question], question: Question) -> None:
    if question.id in found:
        first = found[question.id]
        place = f"{first.file}:{first.line}" if first.line else first.file
        what = f"question {question.id} occurs twice (first in {place})"
        raise InputError(what, where=question.file, line=question.line, remedy="give each question its own id")
    found[question.id] = question


def _read_file(path: str, demands: _Demands) -> Iterator[Question]:
    if kind_of(path) not in (".json", ".jsonl"):
        raise InputError("not a file of questions", where=path, remedy=f"{_SHAPE}, also .gz or .xz")

    if kind_of(path) == ".jsonl" or _holds_lines(path):
        contexts: dict[str, str] = {}  # questions on one context share one string
        for line, row in read_rows(path):
            yield _flat_row(row, path, line, demands, contexts)
        return

    whole = read_json(path)
    data = _field(whole, "data", list, "the file", path) if isinstance(whole, dict) else whole
    for number, entry in enumerate(_expect(data, list, "the file", path)):
        yield from _entry(entry, path, f"data[{number}]", demands)


def _holds_lines(path: str) -> bool:
    """Whether the first line of a .json file is an object by itself, and no whole SQuAD file."""
    if not is_url(path):
        check_input_file(path)
    with access_errors(path, remedy="check the file"), open_bytes(path) as file:
        first = next((line for line in file if line.strip()), b"")
    try:
        row = json.loads(first)
    except ValueError:
        return False
    return isinstance(row, dict) and "data" not in row


def _entry(entry: Any, path: str, place: str, demands: _Demands) -> Iterator[Question]:
    """The questions of an article, or the one of a flat row, which some files have under `data`."""
    entry = _expect(entry, dict, place, path)
    if "paragraphs" not in entry and "context" in entry:
        yield _flat_row(entry, path, None, demands, {}, place)
        return

    title = str(entry.get("title", ""))
    for number, paragraph in enumerate(_field(entry, "paragraphs", list, place, path)):
        inner = f"{place}.paragraphs[{number}]"
        context = whole_text(_field(paragraph, "context", str, inner, path))
        for row, fields in enumerate(_field(paragraph, "qas", list, inner, path)):
            where = _Place(path, None, _name_of(fields, f"{inner}.qas[{row}]"))
            yield _question(fields, context, title, where, demands)


def _flat_row(
    row: dict, path: str, line: int | None, demands: _Demands, contexts: dict[str, str], place: str = "the row"
) -> Question:
    where = _Place(path, line, _name_of(row, place))
    context = whole_text(_field(row, "context", str, where.name, path, line))
    context = contexts.setdefault(context, context)
    return _question(row, context, str(row.get("title") or ""), where, demands)


class _Place(NamedTuple):
    """Where a question is from, for errors."""

    file: str
    line: int | None
    name: str  # "question ID", or its place in the file

    def refuse(self, fault: str, remedy: str) -> InputError:
        return InputError(f"{self.name}: {fault}", where=self.file, line=self.line, remedy=remedy)


def _name_of(fields: Any, otherwise: str) -> str:
    name = fields.get("id") if isinstance(fields, dict) else None
    return otherwise if name is None else f"question {name}"


def _question(fields: Any, context: str, title: str, place: _Place, demands: _Demands) -> Question:
    name = _field(fields, "id", (str, int), place.name, place.file, place.line)
    text = whole_text(_field(fields, "question", str, place.name, place.file, place.line))
    labelled = demands.need_answers or fields.get("answers") is not None
    given = _given_answers(fields, place) if labelled else []
    if fields.get("is_impossible") and given:
        raise place.refuse("is_impossible, but it has answers", "correct one of the two")

    if demands.check_answers:
        answers = tuple(_locate(answer, start, context, place) for answer, start in given)
    else:
        answers = tuple(Answer(answer, -1 if start is None else start) for answer, start in given)
    return Question(str(name), text, context, answers, title, place.file, place.line, labelled)


def _given_answers(fields: dict, place: _Place) -> list[tuple[str, int | None]]:
    """(text, answer_start) of each answer; both shapes are read."""
    answers = fields.get("answers")
    if isinstance(answers, dict) and isinstance(answers.get("text"), list):
        texts = answers["text"]
        starts = answers.get("answer_start", [None] * len(texts))
        if not isinstance(starts, list) or len(starts) != len(texts):
            raise place.refuse("as many entries of answer_start as of text are needed", "correct its answers")
        pairs = list(zip(texts, starts, strict=True))
    elif isinstance(answers, list) and all(isinstance(answer, dict) for answer in answers):
        pairs = [(answer.get("text"), answer.get("answer_start")) for answer in answers]
    else:
        raise place.refuse("no 'answers' of a known shape", "give text and answer_start, or [] where there is none")

    for text, start in pairs:
        if not isinstance(text, str) or isinstance(start, bool) or not isinstance(start, int | None):
            raise place.refuse("an answer is not a text and a number", "give text and answer_start")
    return [(whole_text(cast(str, text)), cast(int | None, start)) for text, start in pairs]


def _locate(text: str, start: int | None, context: str, place: _Place) -> Answer:
    """The answer at its place in the context, corrected where the file's is wrong and the text occurs once."""
    shown = repr(text if len(text) <= 60 else f"{text[:57]}…")
    if not text.strip():
        raise place.refuse("an empty answer", "give answers: [] where the context does not hold the answer")
    if start is not None and start >= 0 and context.startswith(text, start):
        return Answer(text, start)

    first = context.find(text)
    if first < 0:
        raise place.refuse(f"its answer {shown} is not in its context", "correct or remove the question")
    if context.find(text, first + 1) >= 0:
        given = "no answer_start" if start is None else f"not at answer_start {start}"
        raise place.refuse(f"its answer {shown} occurs more than once in its context, {given}", "correct answer_start")
    return Answer(text, first, corrected=True)


def read_hub_questions(name: str, config: str | None) -> dict[str, list[Question]]:
    """The splits train, validation and test, as far as they exist, of a Hub dataset with SQuAD's columns.

    The columns are those of `rajpurkar/squad` and `rajpurkar/squad_v2`; a test split needs no `answers`.

    Raises:
        InputError: it cannot be loaded, has other columns, a split is empty, or an answer is not in its context.
    """
    splits = load_hub(name, config)
    found: dict[str, list[Question]] = {}
    for split in (split for split in ("train", "validation", "test") if split in splits):
        demands = _Demands(need_answers=split != "test")
        questions: dict[str, Question] = {}
        contexts: dict[str, str] = {}
        for number, row in enumerate(splits[split]):
            _add(questions, _flat_row(row, name, None, demands, contexts, f"row {number} of {split}"))
        if not questions:
            raise InputError(f"no questions in its split {split}", where=name, remedy="give --train_file")
        found[split] = list(questions.values())
    return found


# ---- predictions and odds


def read_predictions(path: str) -> dict[str, str]:
    """Answer texts by question id (`predictions.json`), "" where there is none.

    Raises:
        InputError: it is no JSON object of texts, or an id occurs twice.
    """
    remedy = "give the predictions as one JSON object: question id to answer text"
    found = _by_id(path, remedy)
    for name, text in found.items():
        if not isinstance(text, str):
            raise InputError(f"question {name}: its prediction is not a text", where=path, remedy=remedy)
    return found


def read_odds(path: str) -> dict[str, float]:
    """Odds that a question has no answer, by its id (`null_odds.json`): any finite numbers, larger if less likely.

    Raises:
        InputError: it is no JSON object of finite numbers, or an id occurs twice.
    """
    remedy = "give the odds as one JSON object: question id to a finite number"
    found = _by_id(path, remedy)
    for name, odds in found.items():
        if isinstance(odds, bool) or not isinstance(odds, int | float) or not math.isfinite(odds):
            raise InputError(f"question {name}: its odds are not a finite number", where=path, remedy=remedy)
    return {name: float(odds) for name, odds in found.items()}


def _by_id(path: str, remedy: str) -> dict:
    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict:
        found: dict = {}
        for name, value in pairs:
            if name in found:
                raise InputError(f"question {name} occurs twice", where=path, remedy="give each question once")
            found[name] = value
        return found

    found = read_json(path, no_duplicates)
    if not isinstance(found, dict):
        raise InputError("not a JSON object", where=path, remedy=remedy)
    return found


# ---- JSON


def read_json(path: str | Path, object_pairs_hook=None) -> Any:
    """The content of a JSON file, also .gz and .xz.

    Raises:
        InputError: it cannot be read, is not UTF-8 or not JSON.
    """
    if not is_url(path):
        check_input_file(path)
    with access_errors(path, remedy="check the file"), open_bytes(path) as file:
        raw = file.read()

    text = decode_utf8(raw, path).removeprefix("\ufeff")
    remedy = "check that the file is complete"
    return parse_json(text, path, remedy, otherwise="correct the file", object_pairs_hook=object_pairs_hook)


def _expect(value: Any, kind: type, place: str, path: str) -> Any:
    if not isinstance(value, kind):
        names = {list: "a list", dict: "an object"}
        raise InputError(f"{place} is not {names[kind]}", where=path, remedy=_SHAPE)
    return value


def _field(
    holder: Any, key: str, kind: type | tuple[type, ...], place: str, path: str, line: int | None = None
) -> Any:
    """`holder[key]`, which has to be there and of this kind."""
    value = holder.get(key) if isinstance(holder, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InputError(f"{place} has no {key!r} as SQuAD has it", where=path, line=line, remedy=_SHAPE)
    return value
