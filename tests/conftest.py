"""Shared fixtures: a tiny vocabulary, a tiny store of tokens, a tiny network. Nothing here needs the network."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["OMP_NUM_THREADS"] = "1"  # tiny matrices; two threads would only wait for each other

import numpy as np
import pytest
from tiny import TinyStore, tiny_config, tiny_tokenizer


@pytest.fixture(scope="session")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture
def config():
    return tiny_config()


@pytest.fixture
def store():
    return TinyStore()


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def documents():
    """Twenty small documents; each has words of its own, so that one can tell where a sentence came from."""
    return [
        "\n".join(f"Document {d} says in sentence {s} that item{d} follows item{s}." for s in range(2 + d % 5))
        for d in range(20)
    ]
