"""A vocabulary for the documents of tests/conftest.py."""

import pytest


@pytest.fixture(scope="session")
def words():
    from bert_hf.data.text.tokenization import train_tokenizer

    text = [f"Document {d} says in sentence {s} that item{d} follows item{s}." for d in range(20) for s in range(6)]
    return train_tokenizer(text, vocab_size=200)
