"""Word windows: every word comes back once, from the window in which it has most context."""

import numpy as np
import pytest
from helpers.tagged_words import asked_for
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_tokenizer
from transformers import BertTokenizer

from bert_hf.data.text.tokenization import InputTemplate
from bert_hf.finetuning.features.word_windows import WordPieces, WordWindows, make_windows, tokenize_words
from bert_hf.finetuning.tasks.token_classification import TokenClassificationTask

LETTERS, DIGITS = "abcdefghijklmnopqrstuvwxyz", "0123456789"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Splits a word of letters into as many pieces
LETTER_PIECES = [*SPECIAL, *LETTERS, *(f"##{c}" for c in LETTERS + DIGITS), *",.!-", *DIGITS]
LETTER_TOKENIZER = BertTokenizer(vocab={piece: i for i, piece in enumerate(LETTER_PIECES)})
TEMPLATE = InputTemplate(LETTER_TOKENIZER)


def pieces_of(counts: list[list[int]]) -> WordPieces:
    """Sentences whose words have these numbers of pieces; each piece has its own number as id."""
    flat = [count for sentence in counts for count in sentence]
    starts = np.concatenate([[0], np.cumsum(flat)]).astype(np.int64)
    sentences = np.concatenate([[0], np.cumsum([len(sentence) for sentence in counts])]).astype(np.int64)
    return WordPieces(np.arange(starts[-1]), starts, sentences)


def spans(windows: WordWindows) -> list[tuple[int, int]]:
    return list(zip(windows.start.tolist(), windows.end.tolist(), strict=True))


def test_pieces_of_words():
    tokenizer = tiny_tokenizer()
    pieces = tokenize_words([["w1", "w2x0x1", "\x00"], [], ["w3"]], tokenizer)
    assert tokenizer.convert_ids_to_tokens(pieces.ids) == ["w1", "w2", "##x0", "##x1", "w3"]
    assert pieces.starts.tolist() == [0, 1, 4, 4, 5]
    assert pieces.sentences.tolist() == [0, 3, 3, 4]
    assert pieces.is_empty_word.tolist() == [False, False, True, False]


def test_a_word_longer_than_the_window_keeps_its_first_pieces():
    pieces = tokenize_words([["a", "abcdef", "b"], ["abcd"]], LETTER_TOKENIZER, longest=3)
    kept = LETTER_TOKENIZER.convert_ids_to_tokens(pieces.ids)
    assert kept == ["a", "a", "##b", "##c", "b", "a", "##b", "##c"]
    assert pieces.starts.tolist() == [0, 1, 4, 5, 8]


def test_the_example_of_the_docstring():
    windows = make_windows(pieces_of([[1] * 2, [1] * 6]), 4)
    assert spans(windows) == [(0, 2), (2, 6), (4, 8)]
    assert windows.window_of_word.tolist() == [0, 0, 1, 1, 1, 2, 2, 2]

    joined = make_windows(pieces_of([[1] * 2, [1] * 6]), 4, documents=[0, 0])
    assert spans(joined) == [(0, 4), (2, 6), (4, 8)]
    assert joined.window_of_word.tolist() == windows.window_of_word.tolist()


COUNTS = st.lists(st.lists(st.integers(0, 6), max_size=25), min_size=1, max_size=6)


@settings(max_examples=max(100, settings.default.max_examples // 5))
@given(COUNTS, st.integers(6, 20), st.data())
def test_windows_of_any_sentences(counts, longest, data):
    pieces = pieces_of(counts)
    steps = data.draw(st.none() | st.lists(st.integers(0, 1), min_size=len(counts), max_size=len(counts)))
    documents = None if steps is None else np.cumsum(steps).tolist()
    windows = make_windows(pieces, longest, documents)
    starts, total = pieces.starts, len(pieces.starts) - 1
    sentence_of_word = np.repeat(np.arange(len(counts)), [len(sentence) for sentence in counts])

    # No window is too long, or crosses the sentence (the document)
    assert all(starts[last] - starts[first] <= longest for first, last in spans(windows))
    group = sentence_of_word if documents is None else np.array(documents)[sentence_of_word]
    assert all(len(set(group[first:last].tolist())) == 1 for first, last in spans(windows))

    # Each word with pieces is in its window, at its place, and no other window of its sentence gives it more context
    places = windows.position_of_word(pieces, TEMPLATE)
    owners = {w: set(sentence_of_word[windows.window_of_word == w].tolist()) for w in range(len(windows.start))}
    assert all(len(found) == 1 for found in owners.values())  # and every window predicts something
    for word in range(total):
        if starts[word] == starts[word + 1]:
            assert windows.window_of_word[word] == places[word] == -1
            continue

        own = windows.window_of_word[word]
        ids = pieces.ids[starts[windows.start[own]] : starts[windows.end[own]]]
        assert ids[places[word] - 1] == starts[word]
        rivals = [w for w in owners if owners[w] == {sentence_of_word[word]}]
        assert context(pieces, windows, word, own) == max(context(pieces, windows, word, w) for w in rivals)


def context(pieces: WordPieces, windows: WordWindows, word: int, window: int) -> int:
    """Pieces on the shorter side of a word in a window, by counting; -1: it is not in it."""
    first, last = int(windows.start[window]), int(windows.end[window])
    if not first <= word < last:
        return -1
    sizes = np.diff(pieces.starts)
    return int(min(sizes[first:word].sum(), sizes[word + 1 : last].sum()))


@settings(max_examples=max(100, settings.default.max_examples // 5))
@given(COUNTS, st.integers(6, 20))
def test_document_context_leaves_no_piece_free_that_a_word_could_take(counts, longest):
    pieces = pieces_of(counts)
    starts, total = pieces.starts, len(pieces.starts) - 1
    for first, last in spans(make_windows(pieces, longest, [0] * len(counts))):
        free = longest - (starts[last] - starts[first])
        assert first == 0 or starts[first] - starts[first - 1] > free
        assert last == total or starts[last + 1] - starts[last] > free


def test_no_words_at_all():
    pieces = pieces_of([[0, 0], []])
    windows = make_windows(pieces, 4)
    assert len(windows.start) == 0
    assert windows.position_of_word(pieces, TEMPLATE).tolist() == [-1, -1]


def test_features_and_labels_literally(tmp_path):
    file = tmp_path / "a.conll"
    file.write_text("w1x0 B-X\n\x00 O\nw2 I-X\nw3x1x2 O\n\nw4 O\n")
    given = {part: [str(file)] for part in ("train_file", "validation_file")}
    task = TokenClassificationTask(asked_for(tmp_path, **given, test_file=None, max_seq_length=8), tiny_tokenizer())
    assert task.head.labels == ("O", "B-X", "I-X")

    rows = task.encoded("train").features.to_list()
    names = [task.tokenizer.convert_ids_to_tokens(row["input_ids"]) for row in rows]
    assert names[0] == ["[CLS]", "w1", "##x0", "w2", "w3", "##x1", "##x2", "[SEP]"]
    assert rows[0]["labels"] == [-100, 1, -100, 2, 0, -100, -100, -100]
    assert names[1] == ["[CLS]", "w4", "[SEP]"]
    assert [row["length"] for row in rows] == [8, 3]

    # The tag of the word without pieces is O whatever is predicted
    predictions = np.array([[9, 1, 9, 1, 2, 9, 9, 9], [9, 0, -100, -100, -100, -100, -100, -100]])
    assert task.predictions("train", predictions) == [["B-X", "O", "B-X", "I-X"], ["O"]]


@pytest.mark.parametrize("context", [False, True])
@pytest.mark.parametrize("length", [8, 64])
def test_the_labels_themselves_as_predictions_give_every_tag_back(tmp_path, context, length):
    task = TokenClassificationTask(
        asked_for(tmp_path, max_seq_length=length, document_context=context), LETTER_TOKENIZER
    )
    for part, rows in task.parts.items():
        features = task.encoded(part).features.to_list()
        width = max(row["length"] for row in features)
        gold = np.array([row["labels"] + [-100] * (width - row["length"]) for row in features])
        assert all(row["length"] <= length for row in features)
        assert (gold != -100).sum() == sum(map(len, rows.words))  # each word is labelled once
        assert task.predictions(part, gold) == rows.tags
        metrics = task.metrics(part, gold, np.ones((len(gold), 2)))
        assert [metrics["f1"], metrics["f1_person"], metrics["accuracy"]] == [1, 1, 1]


def test_document_context_is_of_the_document(tmp_path):
    file = tmp_path / "a.conll"
    file.write_text("w1 O\n\nw2 B-X\n\n-DOCSTART- O\n\nw3 O\n")
    given = {part: [str(file)] for part in ("train_file", "validation_file")}
    task_args = asked_for(tmp_path, **given, test_file=None, max_seq_length=8, document_context=True)
    task = TokenClassificationTask(task_args, tiny_tokenizer())
    assert [row["input_ids"][1:-1] for row in task.encoded("train").features.to_list()] == [[6, 7], [6, 7], [8]]
    assert [row["labels"] for row in task.encoded("train").features.to_list()][1] == [-100, -100, 1, -100]


def test_validation_sentences_are_split_off(tmp_path):
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list(LETTERS), 5)) for _ in range(400)]
    words[380:] = words[:20]  # the last five sentences repeat the first five
    (tmp_path / "a.conll").write_text("".join(f"{word}\tO\n" + "\n" * (n % 4 == 3) for n, word in enumerate(words)))
    task_args = asked_for(
        tmp_path, train_file=[str(tmp_path / "a.conll")], validation_file=None, test_file=None,
        validation_split_percentage=20,
    )  # fmt: skip
    task = TokenClassificationTask(task_args, tiny_tokenizer())
    parts = task.parts
    assert {part: len(rows) for part, rows in parts.items()} == {"train": 80, "validation": 20}
    assert not {tuple(words) for words in parts["train"].words} & {tuple(words) for words in parts["validation"].words}
    assert parts["validation"] == TokenClassificationTask(task_args, tiny_tokenizer()).parts["validation"]

    # Whole documents, where the data have them
    rows = parts["train"]
    rows.documents = [number // 5 for number in range(len(rows))]
    rest, part = task.add_split_parts({"train": rows}).values()
    assert len(part) == 15
    assert not set(rest.documents) & set(part.documents)
