"""Sums on a device with and without float64."""

import math

import numpy as np
import pytest
import torch
from helpers.trainer_runs import history, make
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bert_hf.training import running_sums
from bert_hf.training.running_sums import RunningSums, sum_dtype

CPU = torch.device("cpu")


class WithoutFloat64(TorchDispatchMode):
    """The CPU as if it were Apple's MPS: to make a float64 tensor raises what it raises there."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float64:
                raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support it")
        return result


@pytest.fixture
def without_float64():
    sum_dtype.cache_clear()
    with WithoutFloat64():
        yield
    sum_dtype.cache_clear()


def test_the_device_is_asked(without_float64):
    assert sum_dtype(CPU) is torch.float32


def test_float64_where_there_is_one():
    assert sum_dtype(CPU) is torch.float64


@pytest.mark.parametrize("error", [RuntimeError("Required aspect fp64 is not supported on the device"), TypeError()])
def test_whatever_the_device_answers(monkeypatch, error):
    """Intel's XPU makes float64 tensors and refuses to compute with them."""

    def refuse(*args, **kwargs):
        raise error

    sum_dtype.cache_clear()
    monkeypatch.setattr(running_sums.torch, "ones", refuse)
    assert sum_dtype(CPU) is torch.float32
    sum_dtype.cache_clear()


def addends(count=3000):
    rng = np.random.default_rng(0)
    losses = torch.from_numpy(rng.uniform(0, 12, (count, 40)).astype(np.float32))
    return losses, torch.from_numpy(rng.integers(10_000, 40_000, (count, 40)))


def summed(numbers, losses, counts):
    for loss, count in zip(losses, counts, strict=True):
        numbers.add([loss, None, count])
    return numbers.values()


def test_two_float32_sum_as_one_float64(monkeypatch):
    losses, counts = addends()
    expected = summed(RunningSums(3, CPU), losses, counts)
    assert expected[1:] == [0.0, float(counts.sum())]
    monkeypatch.setattr(running_sums, "sum_dtype", lambda device: torch.float32)
    found = summed(RunningSums(3, CPU), losses, counts)
    assert found[2] == expected[2]  # 3 · 10⁹, where a float32 knows every 256th number
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    naive = losses.sum(1).cumsum(0)[-1]  # what one float32 makes of it
    assert not math.isclose(naive.item(), expected[0], rel_tol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_survive_a_checkpoint(monkeypatch, dtype):
    monkeypatch.setattr(running_sums, "sum_dtype", lambda device: dtype)
    numbers, again = RunningSums(3, CPU), RunningSums(3, CPU)
    values = summed(numbers, *addends())
    again.set(values)
    assert again.values() == values
    again.zero()
    assert again.values() == [0.0, 0.0, 0.0]


def test_a_run_needs_no_float64_on_its_device(tmp_path, tokenizer):
    """Trained, logged and evaluated; the figures are those of a run with float64."""
    options = {"steps": 4, "logging_steps": 2, "eval_steps": 4, "save_strategy": "no", "phases": False}
    expected = make(tmp_path / "with", tokenizer, **options)
    expected.train()
    sum_dtype.cache_clear()
    with WithoutFloat64():
        trainer = make(tmp_path / "without", tokenizer, **options)
        trainer.train()
    sum_dtype.cache_clear()
    for row, other in zip(history(trainer), history(expected), strict=True):
        assert row == pytest.approx(other, rel=1e-6)


def test_what_was_saved_without_float64_is_read_with_it(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(running_sums, "sum_dtype", lambda device: torch.float32)
    trainer = make(tmp_path, tokenizer, steps=3)
    trainer.train()
    trainer._log_sums.set([0.1, 2.0**30 + 1, 2.0, 0.0, 0.0, 0.0, 7.0, 49.0])
    state = trainer.log_state()
    monkeypatch.undo()
    resumed = make(tmp_path, tokenizer, steps=3)
    resumed.restore_log_state([state])
    assert resumed._log_sums.values() == pytest.approx(trainer._log_sums.values(), rel=1e-14)
