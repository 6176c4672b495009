import pytest
from transformers import TrainingArguments

from bert_hf.training.checkpoints import disk_space
from bert_hf.training.checkpoints.disk_space import checkpoint_bytes, disk_finding


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"save_steps": 10, "save_total_limit": 2}, 3 * 12),  # two, and the one being written
        ({"save_steps": 10, "save_total_limit": 2, "metric_for_best_model": "loss"}, 4 * 12),
        ({"save_steps": 0.25, "save_total_limit": None}, 4 * 12 + 4),  # all of them, and the model
        ({"save_steps": 60, "save_total_limit": 2}, 12 + 4),
        ({"save_strategy": "no"}, 4),
        ({"save_strategy": "no", "save_minutes": 15.0, "save_total_limit": 2}, 3 * 12),
    ],
)
def test_the_most_that_is_on_the_disk_at_one_time(tmp_path, options, expected):
    minutes = options.pop("save_minutes", 0.0)
    args = TrainingArguments(str(tmp_path), max_steps=60, **options)
    args.save_minutes = minutes
    assert checkpoint_bytes(1000, args) == 1000 * expected


def test_a_disk_that_is_too_small_is_a_problem(tmp_path, monkeypatch):
    args = TrainingArguments(str(tmp_path), max_steps=60, save_steps=10, save_total_limit=2)
    monkeypatch.setattr(disk_space, "free_disk", lambda folder: 3e9)
    assert str(disk_finding(10**7, args)) == "  checkpoints take up to 0.36 GB at one time; 3.00 GB of disk are free"
    assert str(disk_finding(10**8, args)).startswith("! checkpoints take up to 3.60 GB")
