"""Inputs of a tokenizer with another template than BERT's have its special tokens and types: the stock tokenizer's."""

import numpy as np
import pytest
from tiny import tiny_tokenizer
from tokenizers import processors

from bert_hf.finetuning.features.context_windows import make_context_windows
from bert_hf.finetuning.features.long_texts import encode_texts
from bert_hf.finetuning.heads.multiple_choice import encode_choices
from bert_hf.finetuning.heads.question_answering import QuestionAnsweringHead
from bert_hf.finetuning.heads.token_classification import TokenClassificationHead
from bert_hf.finetuning.rows.choices import ChoiceRow
from bert_hf.finetuning.rows.labelled_texts import LabelledTexts
from bert_hf.finetuning.rows.questions import Question
from bert_hf.finetuning.rows.tagged_sentences import TaggedSentences

FIRST, SECOND = ["w1 w2 w3 w4 w5", "w6"], ["w7 w8", "w9 w10 w11 w12 w13 w14 w15 w16 w17"]


@pytest.fixture(scope="module")
def tokenizer():
    """Of a pair [CLS] A [SEP] [SEP] B [SEP], all of type 0, as XLM-RoBERTa's; of one text [CLS] [MASK] A [SEP]."""
    made = tiny_tokenizer()
    special = [(name, made.convert_tokens_to_ids(name)) for name in ("[CLS]", "[SEP]", "[MASK]")]
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] [MASK] $A [SEP]", pair="[CLS] $A [SEP] [SEP] $B [SEP]", special_tokens=special
    )
    return made


def test_texts_and_pairs(tokenizer):
    for pairs in (None, SECOND):
        stock = tokenizer(FIRST, pairs, truncation="longest_first", max_length=12)
        found = encode_texts(LabelledTexts(FIRST, None, pairs=pairs), None, tokenizer, 12).features
        assert found["input_ids"][:] == stock["input_ids"]
        assert found["token_type_ids"][:] == stock["token_type_ids"]


def test_choices(tokenizer):
    (found,) = encode_choices([ChoiceRow(FIRST[0], "", tuple(SECOND), 0)], tokenizer, 32)
    stock = tokenizer([FIRST[0]] * 2, SECOND)
    assert found["input_ids"] == stock["input_ids"]
    assert found["token_type_ids"] == stock["token_type_ids"]


def test_windows_of_contexts(tokenizer):
    stock = tokenizer(
        FIRST[1], SECOND[1], truncation="only_second", max_length=10, stride=2, return_overflowing_tokens=True
    )
    windows = make_context_windows([Question("q", FIRST[1], SECOND[1], None)], tokenizer, 10, 2)
    assert windows.features["input_ids"][:] == stock["input_ids"]
    batch = QuestionAnsweringHead(tokenizer).collate(windows.features.to_list())
    assert not batch["token_type_ids"].any()
    context = windows.contexts[0].ids
    for window, shift in enumerate(windows.shift):
        inside = np.arange(*batch["ranges"][window, 2:4].tolist())
        assert batch["input_ids"][window, inside].tolist() == context[inside + shift].tolist()


def test_words(tokenizer):
    rows = TaggedSentences([text.split() for text in FIRST], None, [0, 1], [("", 1, False)] * 2, [[], []])
    found = TokenClassificationHead(tokenizer, {"max_seq_length": 8}).encode(rows)
    assert found.features["input_ids"][:] == tokenizer(rows.words, is_split_into_words=True)["input_ids"]
    assert found.position_of_word.tolist() == [2, 3, 4, 5, 6, 2]
