import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import BertNormalizer
from transformers import BertTokenizer

from bert_hf.data.text import encoding
from bert_hf.data.text.encoding import Encoder, batch_text_pieces, leave_out, split_sentences
from bert_hf.data.text.readers import Piece
from bert_hf.data.text.tokenization import backend, train_tokenizer


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


# ---- the cache of words gives the ids of the Rust tokenizer

LETTERS = "abzABZ09 éÉÄßσΣςİıﬁŉ漢字한글עב "
LETTERS += "ा́̈\u200d\xad\ufffd\ufeff\x00\x1c\x85\u2028\t\r\n\xa0\u3000._-'’“…!?[]#@_()€😀👨‍👩‍👧 the The THE"


@pytest.fixture(scope="module", params=["uncased", "cased", "no strip", "no chinese"])
def trained(request):
    options = {
        "uncased": {},
        "cased": {"do_lower_case": False},
        "no strip": {"strip_accents": False},
        "no chinese": {"tokenize_chinese_chars": False},
    }[request.param]
    return train_tokenizer([LETTERS, "the cat's mat, the café. Ünïcode strings?"] * 3, vocab_size=400, **options)


def assert_same_ids(tokenizer, sentences, encoder=None):
    ids, lengths = (encoder or Encoder(backend(tokenizer)))(sentences)
    expected = [e.ids for e in backend(tokenizer).encode_batch_fast(sentences, add_special_tokens=False)]
    assert lengths.tolist() == [len(sentence) for sentence in expected]
    assert ids.tolist() == [i for sentence in expected for i in sentence]


@settings(max_examples=max(500, settings.default.max_examples // 4))  # four tokenizers
@given(sentences=st.lists(st.one_of(st.text(LETTERS), st.text(st.characters(exclude_categories=["Cs"]))), max_size=6))
def test_cached_words_give_the_tokenizer_s_ids(trained, sentences):
    assert_same_ids(trained, sentences)
    assert_same_ids(trained, sentences * 2)


def test_emptying_the_cache_changes_nothing(trained, monkeypatch):
    monkeypatch.setattr(encoding, "_REMEMBERED", 3)
    encoder = Encoder(backend(trained))
    for sentences in (["the cat", "a b c d e f g"], ["cat the"], [], ["", " ", "the"], ["b"]):
        assert_same_ids(trained, sentences, encoder)


def test_special_tokens_in_the_text(trained):
    assert_same_ids(trained, ["a[MASK]b [SEP]", "[mask] [ SEP ]", "plain"])


def test_a_tokenizer_with_tokens_of_several_words_is_used_itself(trained):
    wide = BertTokenizer(vocab=trained.get_vocab())
    wide.add_tokens([AddedToken("the cat", normalized=True), AddedToken("a b", lstrip=True)])
    assert_same_ids(wide, ["see the cat sit", "the  cat", "see a b", "a", "b"])
    other = Tokenizer(BPE({"a": 0, "b": 1, " ": 2}, [], unk_token=None))
    other.normalizer = BertNormalizer()
    assert Encoder(other)(["a b", "b"])[0].tolist() == [0, 2, 1, 1]


# ---- groups

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
    assert list(leave_out(pieces, numbers)) == kept
