"""Sums on a device with and without float64."""

import pytest
import torch
from helpers.trainer_runs import history, make
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bert_hf.training import pretraining_losses
from bert_hf.training.pretraining_losses import sum_dtype

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
    monkeypatch.setattr(pretraining_losses.torch, "ones", refuse)
    assert sum_dtype(CPU) is torch.float32
    sum_dtype.cache_clear()


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


def test_what_was_saved_without_float64_is_read_with_it(tmp_path, tokenizer):
    trainer, resumed = (make(tmp_path / name, tokenizer, steps=3) for name in ("without", "with"))
    trainer._log_sums = torch.tensor([0.1, 2.0**23 + 1, 2.0, 0.0, 0.0, 0.0, 7.0, 49.0])
    resumed.restore_log_state([trainer.log_state()])
    assert resumed._log_sums.dtype is torch.float64
    assert resumed._log_sums.tolist() == trainer._log_sums.tolist()
