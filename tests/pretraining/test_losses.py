"""A run on a device without float64."""

import pytest
import torch
from helpers.trainer_runs import history, make

from bert_hf.pretraining import trainer as trainer_module
from bert_hf.pretraining.losses import sum_dtype


@pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.float64), ("mps", torch.float32)])
def test_float64_where_there_is_one(device, dtype):
    assert sum_dtype(torch.device(device)) is dtype


def test_a_run_needs_no_float64(tmp_path, tokenizer, monkeypatch):
    """Trained, logged and evaluated with the same metrics; and what was saved is read with float64."""
    options = {"steps": 4, "logging_steps": 2, "eval_steps": 4, "save_strategy": "no", "phases": False}
    expected = make(tmp_path / "with", tokenizer, **options)
    expected.train()
    with monkeypatch.context() as patch:
        patch.setattr(trainer_module, "sum_dtype", lambda device: torch.float32)
        trainer = make(tmp_path / "without", tokenizer, **options)
        trainer.train()
    for row, other in zip(history(trainer), history(expected), strict=True):
        assert row == pytest.approx(other, rel=1e-6)

    trainer._log_sums = torch.tensor([0.1, 2.0**23 + 1, 2.0, 0.0, 0.0, 0.0, 7.0, 49.0])
    expected.restore_log_state([{**trainer.log_state(), "rank": 0}])
    assert expected._log_sums.dtype is torch.float64
    assert expected._log_sums.tolist() == trainer._log_sums.tolist()
