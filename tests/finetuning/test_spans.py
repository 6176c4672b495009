"""Windows of question and context, exact best spans, and the way back to the text: against stock and brute force."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_tokenizer
from transformers import BertTokenizer

from bert_hf.config.finetuning_arguments import QuestionAnsweringArguments
from bert_hf.errors import InputError
from bert_hf.finetuning.features.answer_spans import best_spans, merge_windows, write_predictions
from bert_hf.finetuning.features.context_windows import ContextTokens, answer_tokens, make_context_windows
from bert_hf.finetuning.heads.question_answering import QuestionAnsweringHead
from bert_hf.finetuning.rows.questions import Answer, Question
from bert_hf.finetuning.tasks.question_answering import QuestionAnsweringTask

TINY = tiny_tokenizer()
WINDOW = (384, 128)


def ask(question, context, *answers, name="q"):
    found = [Answer(text, context.index(text)) for text in answers]
    return Question(name, question, context, tuple(found))


def as_row(question):
    answers = [{"text": answer.text, "answer_start": answer.start} for answer in question.answers]
    return {**dataclasses.asdict(question), "answers": answers}


def letters(text):
    """A tokenizer whose vocabulary is every word of a text."""
    words = BertTokenizer(vocab={"[UNK]": 0}).backend_tokenizer
    pieces = words.pre_tokenizer.pre_tokenize_str(words.normalizer.normalize_str(text))
    names = dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(piece for piece, _ in pieces)])
    return BertTokenizer(vocab={name: number for number, name in enumerate(names)})


# ---- windows

CONTEXT = "w1 w2 w3 w4 w5 w6 w7"


def test_windows_literally(tokenizer):
    windows = make_context_windows([ask("w50 w51", CONTEXT, "w4 w5")], tokenizer, 9, 2)
    found = [tokenizer.decode(row["input_ids"]) for row in windows.features]
    assert found == [
        "[CLS] w50 w51 [SEP] w1 w2 w3 w4 [SEP]",
        "[CLS] w50 w51 [SEP] w3 w4 w5 w6 [SEP]",
        "[CLS] w50 w51 [SEP] w5 w6 w7 [SEP]",
    ]
    # The first window has no previous one, the last no next one
    assert windows.features["ranges"][:] == [[0, 0, 4, 8, 6, 10], [2, 6, 4, 8, 6, 9], [2, 6, 4, 7, 0, 0]]
    assert windows.features["labels"][:] == [[0, 0], [5, 6], [0, 0]]  # the second alone holds the whole answer
    assert windows.features["length"][:] == [9, 9, 8]
    assert windows.shift.tolist() == [-4, -2, 0]


def test_a_batch_literally(tokenizer):
    windows = make_context_windows([ask("w50", "w1 w2 w3", "w2"), ask("w50", "w1", name="r")], tokenizer, 16, 2)
    batch = QuestionAnsweringHead(tokenizer).collate(list(windows.features))
    assert {name: value.int().tolist() for name, value in batch.items() if name != "input_ids"} == {
        "attention_mask": [[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]],
        "token_type_ids": [[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0]],
        "labels": [[4, 4], [0, 0]],
        "ranges": [[0, 0, 3, 6, 0, 0], [0, 0, 3, 4, 0, 0]],
    }
    expected = tokenizer(["w50", "w50"], ["w1 w2 w3", "w1"], padding=True)
    assert batch["input_ids"].tolist() == expected["input_ids"]
    assert batch["token_type_ids"].tolist() == expected["token_type_ids"]


@settings(max_examples=100)
@given(question=st.integers(1, 9), context=st.integers(1, 40), length=st.integers(12, 30), stride=st.integers(0, 4))
def test_windows_equal_those_of_the_stock_tokenizer(question, context, length, stride):
    texts = " ".join(f"w{n}" for n in range(question)), " ".join(f"w{n % 60}" for n in range(context))
    if length - question - 3 <= stride:
        return
    stock = TINY(*texts, truncation="only_second", max_length=length, stride=stride, return_overflowing_tokens=True)
    ours = make_context_windows([ask(*texts)], TINY, length, stride)
    assert ours.features["input_ids"][:] == stock["input_ids"]


def most_context(spans, first, last):
    """The window of a span by the formula of the 2018 code, which takes it for single tokens."""
    best, found = None, None
    for number, (start, length) in enumerate(spans):
        end = start + length - 1
        if first < start or last > end:
            continue
        score = min(first - start, end - last) + 0.01 * length
        if best is None or score > best:
            best, found = score, number
    return found


@pytest.mark.parametrize("titled", [False, True])
def test_contexts_that_differ_in_case_and_punctuation_are_in_one_part(tmp_path, titled):
    """Fifty contexts, each in three forms; of three forms that one title names, and all others."""
    rng = np.random.default_rng(0)
    contexts = [" ".join(rng.choice(list("abcdefgh"), 9)) for _ in range(50)]
    questions = []
    for number, context in enumerate(contexts):
        for form in (context, context.upper(), f"{context} ."):
            title = f"article {number // 2}" if titled else ""
            answer = Answer(form[:1], 0)
            questions.append(Question(str(len(questions)), "Why?", form, (answer,), title))
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(as_row(question)) + "\n" for question in questions))
    task_args = QuestionAnsweringArguments(train_file=[str(path)])
    rest, part = QuestionAnsweringTask(task_args, TINY).parts.values()
    assert len(part) == pytest.approx(15, abs=3)
    texts = [{question.context.lower().rstrip(" .") for question in rows} for rows in (rest, part)]
    assert not texts[0] & texts[1]
    assert not titled or not {question.title for question in rest} & {question.title for question in part}


def test_an_empty_context_is_one_window_without_answer(tokenizer):
    windows = make_context_windows([ask("w1", "")], tokenizer, *WINDOW)
    assert tokenizer.decode(windows.features[0]["input_ids"]) == "[CLS] w1 [SEP] [SEP]"
    (prediction,) = merge_windows(windows, reduced(windows, *zeros(windows)))
    assert (prediction.text(), prediction.spans) == ("", [])
    assert [span.text for span, _ in prediction.probabilities(with_null=False)] == [""]


@pytest.mark.parametrize(("shape", "left"), [((8, 1), 0), ((12, 4), 4)])
def test_too_little_space_for_the_context(tokenizer, shape, left):
    question = dataclasses.replace(ask("w1 w2 w3 w4 w5", CONTEXT), file="a.jsonl", line=7)
    with pytest.raises(InputError) as error:
        make_context_windows([question], tokenizer, *shape)
    assert str(error.value).startswith("a.jsonl:7: question q")
    assert f" {left} " in str(error.value)


def test_answers_at_the_ends_of_tokens():
    tokens = ContextTokens(np.arange(3), np.array([0, 4, 9]), np.array([3, 8, 12]))  # "the four th."
    assert answer_tokens(tokens, "the", 0) == (0, 0)
    assert answer_tokens(tokens, " four ", 3) == (1, 1)  # white space does not count
    assert answer_tokens(tokens, "our t", 5) == (1, 2)  # whole tokens
    assert answer_tokens(tokens, " ", 3) is None


# ---- the best spans


def zeros(windows):
    shape = len(windows.question_of_window), max(windows.features["length"])
    return np.zeros(shape, np.float32), np.zeros(shape, np.float32)


def reduced(windows, starts, ends, n_best=20, max_answer_length=30):
    """The best spans of each window, computed in batches of different lengths."""
    found = []
    rows = list(windows.features)
    for begin in range(0, len(windows.question_of_window), 3):
        batch = QuestionAnsweringHead(TINY).collate(rows[begin : begin + 3])
        length = batch["input_ids"].shape[1]
        logits = (torch.tensor(logits[begin : begin + 3, :length]) for logits in (starts, ends))
        found.append(best_spans(*logits, batch["ranges"], n_best, max_answer_length))
    return [torch.cat(column).numpy() for column in zip(*found, strict=True)]


@settings(max_examples=1000)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_n_best_list_equals_brute_force(seed):
    rng = np.random.default_rng(seed)

    def words(most):
        return " ".join(f"w{number}" for number in rng.integers(0, 60, rng.integers(0, most + 1)))

    questions = [ask(words(3), words(20), name=str(number)) for number in range(2)]
    stride = int(rng.integers(0, 4))
    windows = make_context_windows(questions, TINY, int(rng.integers(stride + 7, 24)), stride)
    n_best, longest = int(rng.integers(1, 9)), int(rng.integers(1, 7))
    starts, ends = (np.zeros_like(each) for each in zeros(windows))
    for logits in (starts, ends):
        whole = rng.integers(-2, 3, logits.shape)  # many ties
        logits[:] = whole if seed % 2 else rng.normal(size=logits.shape)

    found = list(merge_windows(windows, reduced(windows, starts, ends, n_best, longest)))
    rows = list(windows.features)
    for number, prediction in enumerate(found):
        expected, null = brute_force(windows, rows, number, starts, ends, longest)
        ours = [(span.start_logit, span.end_logit, span.start, span.end) for span in prediction.spans]
        assert ours == expected[:n_best]
        assert (prediction.null.start_logit, prediction.null.end_logit) == null


def brute_force(windows, data, question, starts, ends, longest):
    """All spans of a question in order, and the logits of [CLS]: every window, every start, every end."""
    rows = np.flatnonzero(windows.question_of_window == question)
    context = windows.questions[question].context
    offsets = TINY(context, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    parts = [data[row]["ranges"][2:4] for row in rows]
    spans = [(begin + int(windows.shift[row]), end - begin) for row, (begin, end) in zip(rows, parts, strict=True)]

    found = []
    for window, row in enumerate(rows):
        begin, end = parts[window]
        for i in range(begin, end):
            first = i + int(windows.shift[row])
            for j in range(i, min(end, i + longest)):
                last = j + int(windows.shift[row])
                if most_context(spans, first, last) != window:
                    continue
                score = starts[row, i] + ends[row, j]
                characters = offsets[first][0], offsets[last][1]
                found.append(((-score, first, last), (starts[row, i], ends[row, j], *characters)))
    null = min(((starts[row, 0] + ends[row, 0], starts[row, 0], ends[row, 0]) for row in rows), key=lambda n: n[0])
    return [entry for _, entry in sorted(found, key=lambda pair: pair[0])], null[1:]


def predicted(windows, spans, null=(0.0, 0.0)):
    """The prediction of one question in one window, by logits that are 0 except those of `spans`: {position: pair}."""
    starts, ends = zeros(windows)
    starts[0, 0], ends[0, 0] = null
    for position, (start, end) in spans.items():
        starts[0, position], ends[0, position] = start, end
    return next(merge_windows(windows, reduced(windows, starts, ends, n_best=3)))


def test_null_odds_and_threshold(tokenizer):
    windows = make_context_windows([ask("w50", CONTEXT)], tokenizer, *WINDOW)
    prediction = predicted(windows, {4: (3.0, 1.0)}, null=(2.0, 3.5))
    assert prediction.null_odds == 1.5
    assert prediction.text() == "w2"
    assert prediction.text(1.5) == "w2"  # only odds above the threshold say that there is no answer
    assert prediction.text(1.25) == ""


def test_files_of_the_2018_code(tokenizer, tmp_path):
    windows = make_context_windows([ask("w50", "w1 w2", name="a"), ask("w50", "", name="b")], tokenizer, *WINDOW)
    starts, ends = zeros(windows)
    starts[0, 3], ends[:, 0] = 1.0, [0.5, 0.25]
    found = reduced(windows, starts, ends, n_best=2)

    write_predictions(tmp_path, merge_windows(windows, found), threshold=0.0)
    names = ("predictions", "nbest_predictions", "null_odds")
    texts, lists, odds = (json.loads((tmp_path / f"{name}.json").read_text()) for name in names)
    assert texts == {"a": "w1", "b": ""}
    assert odds == {"a": -0.5, "b": 0.25}
    weights = np.exp([1.0, 1.0, 0.5])
    assert [entry.pop("probability") for entry in lists["a"]] == pytest.approx(weights / weights.sum(), rel=1e-12)
    assert lists == {
        "a": [
            {"text": "w1", "start_logit": 1.0, "end_logit": 0.0},
            {"text": "w1 w2", "start_logit": 1.0, "end_logit": 0.0},
            {"text": "", "start_logit": 0.0, "end_logit": 0.5},
        ],
        "b": [{"text": "", "probability": 1.0, "start_logit": 0.0, "end_logit": 0.25}],
    }

    (tmp_path / "null_odds.json").unlink()
    write_predictions(tmp_path, merge_windows(windows, found), threshold=None)
    assert json.loads((tmp_path / "predictions.json").read_text()) == {"a": "w1", "b": ""}
    assert len(json.loads((tmp_path / "nbest_predictions.json").read_text())["a"]) == 2
    assert not (tmp_path / "null_odds.json").exists()


def gold_answers(questions, tokenizer, shape):
    """Texts that come back where each window that holds the gold answer predicts it, and the others nothing."""
    windows = make_context_windows(questions, tokenizer, *shape)
    found = []
    for begin in range(0, len(windows.question_of_window), 64):
        own = windows.features.select(range(begin, min(begin + 64, len(windows.question_of_window))))
        batch = QuestionAnsweringHead(TINY).collate(list(own))
        logits = torch.zeros(2, *batch["input_ids"].shape)
        for row, (first, last) in enumerate(batch["labels"].tolist()):
            logits[0, row, first] = logits[1, row, last] = 5.0
        found.append(best_spans(*logits, batch["ranges"], 1, 60))
    columns = [torch.cat(column).numpy() for column in zip(*found, strict=True)]
    return {prediction.question.id: prediction.text() for prediction in merge_windows(windows, columns)}


PARAGRAPH = (
    "In  the Café Zoe\u0308, 東京都 (Tokyo) met naïve Ümit: “I ❤\ufe0f it”, said 김철수.\tÅngström's co-op "
    "paid $3.5\u00a0m for 👩\u200d💻 and the\n\nlast  e\u0301clair; हिन्दी भाषा, Straße, İstanbul and ﬁsh."
)
GOLD = [
    "Café Zoe\u0308", "東京", "京都", "naïve Ümit", "I ❤\ufe0f it", "❤\ufe0f", "김철수", "Ångström's", "co-op",
    "$3.5\u00a0m", "👩\u200d💻", "the\n\nlast  e\u0301clair", "e\u0301clair", "हिन्दी भाषा", "Straße", "İstanbul",
    "ﬁsh", "In  the Café",
]  # fmt: skip


@pytest.mark.parametrize("lower", [True, False])
def test_text_comes_back_byte_for_byte(lower):
    tokenizer = letters(PARAGRAPH)
    if not lower:
        tokenizer = BertTokenizer(vocab=tokenizer.get_vocab(), do_lower_case=False)
    questions = [ask("I it", PARAGRAPH, gold, name=gold) for gold in GOLD]
    for shape in (WINDOW, (24, 12)):
        assert gold_answers(questions, tokenizer, shape) == {gold: gold for gold in GOLD}
