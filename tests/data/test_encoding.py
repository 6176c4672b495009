import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from bert_hf.data.text import encoding
from bert_hf.data.text.encoding import batch_text_pieces, skip_documents, split_sentences
from bert_hf.data.text.readers import Piece


@pytest.mark.parametrize(
    ("language", "text", "sentences"),
    [
        ("en", "It was Dr. Smith. He left.", ["It was Dr. Smith.", "He left."]),
        ("de", "Das ist z. B. gut. Er kam am 3. Mai.", ["Das ist z. B. gut.", "Er kam am 3. Mai."]),
        ("de-AT", "Das ist z. B. gut. Er kam am 3. Mai.", ["Das ist z. B. gut.", "Er kam am 3. Mai."]),
        ("de-Latn-CH", "Er kam am 3. Mai. Gut.", ["Er kam am 3. Mai.", "Gut."]),
        ("deu", "Das ist z. B. gut. Er kam am 3. Mai.", ["Das ist z. B. gut.", "Er kam am 3. Mai."]),
        ("ger-AT", "Das ist z. B. gut. Er kam am 3. Mai.", ["Das ist z. B. gut.", "Er kam am 3. Mai."]),
        ("zh", "今天天气很好。我们去公园吧！", ["今天天气很好。", "我们去公园吧！"]),
        ("xx", "No such language. It still works.", ["No such language.", "It still works."]),
        ("en", "one a line\n\nand another\r\n", ["one a line", "and another"]),
        ("en", "\n \n", []),
    ],
)
def test_sentences(language, text, sentences):
    assert split_sentences(text, language) == sentences


@pytest.mark.parametrize("space", ["\u00a0", "\u2009", "\u3000", " \u3000\u00a0"])
def test_a_letter_and_wide_space_before_a_full_stop(space):
    """`sentencex` 1.0.32 panics on it."""
    assert split_sentences(f"This is grade A{space}. It is good.") == ["This is grade A .", "It is good."]


def test_long_white_space_after_a_letter_takes_linear_time():
    assert split_sentences("A" + "\u00a0" * 300_000 + "b") == ["A", "b"]


@pytest.mark.parametrize(
    ("language", "space", "sentences"),
    [
        ("zh", "", ["我今天很高兴，我们去公园。", "“你好！”", "他说。"]),
        ("ja", "", ["今日は天気がいいです。", "「行こう。」", "本当ですか？"]),
        ("hi", "", ["नमस्ते।", "कैसे हो॥"]),
        ("ar", "", ["كيف؟"]),
        ("my", "", ["ကောင်းတယ်။"]),
        ("ko", " ", ["한다!", "했다."]),
        ("en", " ", ["It was Dr. Smith.", "He said: 'It rains in Washington (D.C.) today.'", "Is it?"]),
    ],
)
@pytest.mark.parametrize("length", [20, 2_000, 30_000])
def test_a_long_line_has_the_same_sentences(monkeypatch, language, space, sentences, length):
    """`sentencex` gets parts of it, since its time is quadratic where no spaces are between sentences."""
    parts = []
    segment = encoding.sentencex.segment
    monkeypatch.setattr(encoding.sentencex, "segment", lambda code, part: parts.append(part) or segment(code, part))

    expected = sentences * (length // sum(map(len, sentences)) + 1)
    line = space.join(expected)
    assert split_sentences(line, language) == expected
    assert "".join(parts) == line
    if space or length < encoding.LONG_LINE:
        assert parts == [line]
    else:
        assert len(parts) >= 3
        assert max(map(len, parts)) < encoding.LONG_LINE + 50


def test_ids_above_the_number_of_tokens_and_an_unknown_token_of_another_name():
    model = models.WordLevel({"<unk>": 1, "a": 70_000}, "<unk>")
    encoded = encoding.encode_group((Piece("a\nb"),), Tokenizer(model), None)
    assert (encoded.ids.tolist(), encoded.unknown) == ([70_000, 1], 1)


def test_text_without_full_stops_is_cut_at_white_space():
    text = " ".join(["word"] * 1000)
    sentences = split_sentences(text)
    assert len(sentences) > 1
    assert max(map(len, sentences)) <= 1000
    assert " ".join(sentences) == text
    assert "".join(split_sentences("x" * 2500)) == "x" * 2500


def test_without_a_language_a_line_is_a_sentence():
    assert split_sentences("One. Two.\r\n\n  three\x0b4 ", None) == ["One. Two.", "three\x0b4"]
    assert split_sentences("x" * 5000, None) == ["x" * 5000]


PIECES = st.lists(st.builds(Piece, st.text("ab. \n", max_size=60), st.booleans()), max_size=30)


@given(pieces=PIECES, size=st.integers(1, 200))
def test_groups_keep_all_pieces_in_order(pieces, size):
    before, encoding.GROUP = encoding.GROUP, size
    try:
        groups = list(batch_text_pieces(pieces))
    finally:
        encoding.GROUP = before
    assert [piece for group in groups for piece in group] == pieces
    assert all(groups)


@given(pieces=PIECES, numbers=st.frozensets(st.integers(0, 12)))
def test_documents_are_left_out_whole(pieces, numbers):
    document = np.cumsum([0, *(piece.ends for piece in pieces)])
    kept = [piece for piece, number in zip(pieces, document, strict=False) if number not in numbers]
    assert list(skip_documents(pieces, numbers)) == kept
