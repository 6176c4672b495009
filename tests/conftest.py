"""Shared fixtures: a tiny vocabulary, a tiny corpus, a tiny model. Tests run offline.

What needs torch is imported where it is used: `make test` has a process that only deals out files to the processes
that run them. It loads this module too, and they would start five seconds later.
"""

import gc
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Generator

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["OMP_NUM_THREADS"] = "1"  # with tiny matrices a second thread costs time

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# No power is cut during a test, and each of a checkpoint's dozen files would wait for the disk.
os.fsync = os.fstat

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


# Files that mostly wait run next to files that start several processes: then both cores have work.
FIRST = ("test_distributed.py", "test_fault_harness.py", "test_preemption.py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Under pytest-xdist: the files of `FIRST`, then those of many tests before those of few."""
    if not hasattr(config, "workerinput"):
        return

    tests = Counter(item.path for item in items)
    place = {name: number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: (place.get(item.path.name, len(FIRST)), -tests[item.path]))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator:
    """Without garbage collection, which visits again and again what the imports create: a quarter of their time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """All test modules are imported."""
    from helpers.many_runs import prepare_for_many_runs

    prepare_for_many_runs()


@pytest.fixture(scope="session", autouse=True)
def temporary_files(tmp_path_factory):
    """Where pytest removes them: a run that is killed leaves the plans of its windows to its next start."""
    os.environ["TMPDIR"] = tempfile.tempdir = str(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def tokenizer():
    from tiny import tiny_tokenizer

    return tiny_tokenizer()


@pytest.fixture
def config():
    from tiny import tiny_config

    return tiny_config()


@pytest.fixture
def store():
    from tiny import TinyStore

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
