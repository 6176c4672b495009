"""What a tokenizer keeps of text in twelve languages, and the choice of `strip_accents`."""

import json
import unicodedata
from collections import Counter

import numpy as np
import pytest
from paragraphs import PARAGRAPHS
from transformers import AutoTokenizer, BertTokenizer

from bert_hf.data.text.encoding import encode_sentences, split_sentences
from bert_hf.data.text.tokenization import backend, save_tokenizer, train_tokenizer
from bert_hf.data.text.writing_systems import script_of, should_strip_accents

STRIPPED = ("de", "tr", "el", "ru")


def trained(text, **options):
    return train_tokenizer([text] * 3, vocab_size=600, **options)


def joined_pieces(tokenizer, text):
    return "".join(piece.removeprefix("##") for piece in tokenizer.tokenize(text))


def without_marks(text):
    return "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")


@pytest.mark.parametrize("language", PARAGRAPHS)
def test_a_paragraph_comes_back(language, tmp_path):
    """Except for case; in German, Turkish, Greek and Russian also except for accents. Computed without our code."""
    text = PARAGRAPHS[language]
    tokenizer = trained(text)
    expected = without_marks(text) if language in STRIPPED else text
    expected = "".join(map(str.lower, expected))  # by character: no final sigma
    back = joined_pieces(tokenizer, text)
    assert unicodedata.normalize("NFC", back) == unicodedata.normalize("NFC", "".join(expected.split()))

    save_tokenizer(tokenizer, tmp_path)
    recorded = json.loads((tmp_path / "tokenizer_config.json").read_text())["strip_accents"]
    assert recorded is (None if language in STRIPPED else False)
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.unk_token_id not in ids
    for stock in (BertTokenizer.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)):
        assert stock(text)["input_ids"] == ids
    assert encode_sentences(backend(tokenizer), [text])[0].tolist() == ids[1:-1]


@pytest.mark.parametrize(
    ("language", "damage"),
    [
        ("hi", ("है", "ह")),
        ("th", ("ที่", "ท")),
        ("ar", ("أسرع", "اسرع")),
        ("he", ("שָׁלוֹם", "שלום")),
        ("ja", ("かぎ", "かき")),
    ],
)
def test_stripping_by_option_is_done(language, damage):
    """An explicit option is never changed."""
    tokenizer = trained(PARAGRAPHS[language], strip_accents=True)
    assert joined_pieces(tokenizer, damage[0]) == damage[1]


def test_chinese_and_japanese_sentences_and_words():
    assert len(split_sentences(PARAGRAPHS["zh"], "zh")) == 7  # one of them inside quotation marks
    assert len(split_sentences(PARAGRAPHS["ja"], "ja")) == 5
    assert trained(PARAGRAPHS["zh"]).tokenize("面包师提着") == ["面", "包", "师", "提", "着"]
    words = backend(trained(PARAGRAPHS["ja"]))
    cut = [word for word, _ in words.pre_tokenizer.pre_tokenize_str(words.normalizer.normalize_str("朝早く市場が"))]
    assert cut == ["朝", "早", "く", "市", "場", "が"]


def chosen(text):
    return should_strip_accents(Counter(text))


def test_the_choice_by_script():
    english = "The quick brown fox jumps over the lazy dog. " * 40
    assert chosen(english)[0]
    strips, reason = chosen(PARAGRAPHS["hi"])
    assert not strips
    assert reason.endswith("100.0% of the letters are not Latin, Greek or Cyrillic (most: Devanagari)")

    # A foreign name in an English text changes nothing: 1 % of the letters is the limit.
    assert chosen(english + "東京")[0]
    assert not chosen(english + "東京タワーのみどころ" * 2)[0]
    assert "so they distinguish words" in chosen(PARAGRAPHS["vi"])[1]


def test_scripts_of_letters():
    letters = "aßéЖёΩが漢ーﾊ한हअאبก"
    expected = "Latin Latin Latin Cyrillic Cyrillic Greek Hiragana Cjk Katakana Katakana Hangul Devanagari".split()
    assert [script_of(c) for c in letters] == [*expected, "Devanagari", "Hebrew", "Arabic", "Thai"]
    assert [script_of(c) for c in "ｗ𝐚ﬁªʰ\u0301\u3099"] == [*["Latin"] * 5, None, None]


def test_the_alphabet_grows_with_the_text():
    """1,000 characters if they are enough; else as many as make up 99.95 %, a quarter of the vocabulary at most."""
    rng = np.random.default_rng(0)
    korean = "".join(map(chr, 0xAC00 + rng.integers(0, 1500, 30_000)))
    texts = [" ".join(korean[i : i + 5] for i in range(0, len(korean), 5))]
    single = {}
    for size in (4000, 8000):
        tokenizer = train_tokenizer(texts, vocab_size=size)
        single[size] = sum(len(piece) == 1 for piece in tokenizer.get_vocab())
        assert len(tokenizer) <= size
    assert single == {4000: 1000, 8000: pytest.approx(1490, abs=10)}
