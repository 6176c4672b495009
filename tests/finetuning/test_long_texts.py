"""Texts of any length as inputs: equal to the stock tokenizer's, or to brute force where it cannot do the same."""

import numpy as np
import pytest

from bert_hf.finetuning.features.long_texts import HEAD_SHARE, average_windows, encode_texts
from bert_hf.finetuning.rows.labelled_texts import LabelledTexts

CLS, SEP = 2, 3


def words(rng, count) -> str:
    return " ".join(f"w{number}" for number in rng.integers(0, 60, count))


def random_rows(rng, pairs: bool, count: int = 200) -> LabelledTexts:
    texts = [words(rng, rng.integers(0, 40)) for _ in range(count)]
    seconds = [words(rng, rng.integers(0, 40)) for _ in range(count)] if pairs else None
    return LabelledTexts(texts, None, pairs=seconds)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("length", [9, 16, 17, 64])
def test_head_is_the_stock_truncation(tokenizer, rng, pairs, length):
    rows = random_rows(rng, pairs)
    stock = tokenizer(rows.texts, rows.pairs, truncation="longest_first", max_length=length)
    found = encode_texts(rows, None, tokenizer, length)
    stock.pop("attention_mask")  # the collator makes it
    for name, values in stock.items():
        assert found.features[name] == values
    assert found.features["length"] == [len(ids) for ids in stock["input_ids"]]
    assert set(found.features.column_names) == {*stock, "length"}
    assert found.row_of_feature.tolist() == list(range(len(rows)))


def test_labels_are_those_of_the_rows(tokenizer):
    rows = LabelledTexts(["w1 w2 w3 w4 w5 w6 w7 w8", "w9"], ["x", "y"])
    found = encode_texts(rows, [1, 0], tokenizer, 6, "windows")
    assert found.features["labels"] == [1, 1, 1, 0]
    assert found.row_of_feature.tolist() == [0, 0, 0, 1]
    assert encode_texts(rows, [0.5, 2.25], tokenizer, 6).features["labels"] == [0.5, 2.25]


def test_literal_inputs(tokenizer):
    first = 5  # id of w0
    rows = LabelledTexts(["w0 w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11"], None)
    inputs = lambda long_texts: encode_texts(rows, None, tokenizer, 10, long_texts).features["input_ids"]  # noqa: E731
    numbered = lambda *numbers: [CLS, *(first + number for number in numbers), SEP]  # noqa: E731
    assert inputs("head") == [numbered(*range(8))]
    assert inputs("head_tail") == [numbered(0, 1, 6, 7, 8, 9, 10, 11)]  # 8 × 128/510 = 2 from the beginning
    assert inputs("windows") == [numbered(*range(8)), numbered(*range(4, 12))]


def test_head_and_tail_have_the_lengths_of_the_paper(tokenizer):
    rows = LabelledTexts([" ".join(f"w{number % 60}" for number in range(700))], None)
    ids = encode_texts(rows, None, tokenizer, 512, "head_tail").features["input_ids"][0]
    whole = encode_texts(rows, None, tokenizer, 1000).features["input_ids"][0][1:-1]
    assert ids == [CLS, *whole[:128], *whole[-382:], SEP]
    assert round(510 * HEAD_SHARE) == 128


@pytest.mark.parametrize("pairs", [False, True])
def test_windows_hold_every_token_and_overlap(tokenizer, rng, pairs):
    rows = random_rows(rng, pairs)
    length = 14
    whole = encode_texts(rows, None, tokenizer, 1000)
    found = encode_texts(rows, None, tokenizer, length, "windows")
    for row in range(len(rows)):
        features = [found.features[int(number)] for number in np.flatnonzero(found.row_of_feature == row)]
        ids, types = (np.array(whole.features[row][name]) for name in ("input_ids", "token_type_ids"))
        assert all(len(feature["input_ids"]) <= length for feature in features)
        if len(ids) <= length:
            assert [feature["input_ids"] for feature in features] == [ids.tolist()]
            continue

        assert len({len(feature["input_ids"]) for feature in features}) == 1  # equally long
        texts = [ids[(types == kind) & (ids > SEP)] for kind in (0, 1)]
        longer = int(len(texts[1]) > len(texts[0]))
        ends = 0
        for feature in features:
            parts = [np.array(feature["input_ids"])[np.array(feature["token_type_ids"]) == kind] for kind in (0, 1)]
            parts = [part[part > SEP] for part in parts]
            size = len(parts[longer])
            begins = [at for at in range(ends + 1) if np.array_equal(texts[longer][at : at + size], parts[longer])]
            assert begins  # no token is between two windows
            ends = begins[-1] + size
            assert (parts[1 - longer] == texts[1 - longer][: len(parts[1 - longer])]).all()
        assert ends == len(texts[longer])


def test_averaging_is_the_mean_of_each_row(rng):
    row_of_feature = np.repeat(np.arange(50), rng.integers(1, 9, 50))
    logits = rng.normal(size=(len(row_of_feature), 3)).astype(np.float32)
    expected = [logits[row_of_feature == row].astype(np.float64).mean(0) for row in range(50)]
    np.testing.assert_allclose(average_windows(logits, row_of_feature), expected, rtol=0, atol=1e-15)


def test_empty_texts_and_no_rows(tokenizer):
    rows = LabelledTexts(["", "w1"], None)
    assert encode_texts(rows, None, tokenizer, 8).features["input_ids"] == [[CLS, SEP], [CLS, 6, SEP]]
    nothing = encode_texts(LabelledTexts([], None), None, tokenizer, 8)
    assert len(nothing.features) == 0
    assert nothing.note == ""
    assert average_windows(np.zeros((0, 2)), nothing.row_of_feature).shape == (0, 2)
