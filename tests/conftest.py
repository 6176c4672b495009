"""Shared fixtures: a tiny vocabulary, a tiny store of tokens, a tiny network. Nothing here needs the network."""

import os
import signal

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["OMP_NUM_THREADS"] = "1"  # tiny matrices; two threads would only wait for each other

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from tiny import TinyStore, tiny_config, tiny_tokenizer

# A shell's background jobs are told to ignore the one, and what nohup runs the other.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# How many examples a property is tried on: `pytest -m hypothesis --hypothesis-profile=long` is the long proof.
# By default always the same ones; in the long runs others each time, and a failure prints how to have it again.
calm = {"deadline": None, "database": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("short", max_examples=500, derandomize=True, **calm)
settings.register_profile("medium", max_examples=20_000, print_blob=True, **calm)
settings.register_profile("long", max_examples=200_000, print_blob=True, **calm)
settings.load_profile("short")


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
