"""Shared fixtures: a tiny vocabulary, a tiny corpus, a tiny model. Tests run offline."""

import os
import signal

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["OMP_NUM_THREADS"] = "1"  # with tiny matrices a second thread costs time

import numpy as np
import pytest
from helpers.many_runs import prepare_for_many_runs
from hypothesis import HealthCheck, settings
from tiny import TinyStore, tiny_config, tiny_tokenizer

# A shell's background jobs ignore SIGINT, and commands under nohup ignore SIGHUP.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Number of examples for each property: `pytest -m hypothesis --hypothesis-profile=long` tries 200,000.
# By default they are always the same. In the longer profiles they differ; a failure prints how to repeat it.
COMMON = {"deadline": None, "database": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("short", max_examples=500, derandomize=True, **COMMON)
settings.register_profile("medium", max_examples=20_000, print_blob=True, **COMMON)
settings.register_profile("long", max_examples=200_000, print_blob=True, **COMMON)
settings.load_profile("short")


def pytest_collection_finish() -> None:
    """All test modules are imported."""
    prepare_for_many_runs()


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
    """Twenty small documents; each sentence contains the number of its document."""
    return [
        "\n".join(f"Document {d} says in sentence {s} that item{d} follows item{s}." for s in range(2 + d % 5))
        for d in range(20)
    ]
