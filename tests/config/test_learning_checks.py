"""A run that cannot learn is reported before it trains, and after it if it has not learned."""

import pytest

from bert_hf.config.learning_checks import LearningSettings, examine_learning
from bert_hf.training.pretraining_report import report_heldout

# Version 0.1 of configs/pretrain/default.yaml, and the paper's base model: nothing is reported.
DEFAULT = LearningSettings(1500, 32, 150, "linear", "adamw_torch_fused", 1e-3, 0.15 * 32 * 128, 8192, 0.05)
PAPER = LearningSettings(1_000_000, 256, 10_000, "linear", "bert_adam", 1e-4, 0.15 * 256 * 128, 30522, 0.02)


def asked_for(**changes):
    """(what, remedy) of each finding that asks for something."""
    return [found for found in examine_learning(DEFAULT._replace(**changes)) if found[1]]


@pytest.mark.parametrize("planned", [DEFAULT, PAPER], ids=["default", "paper"])
def test_good_runs_are_left_alone(planned):
    assert [remedy for _, remedy in examine_learning(planned)] == ["", "", "", ""]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"warmup_steps": 10_000}, "10,000 steps of warm-up in a run of 1,500: the rate never passes 0.00015 of"),
        ({"warmup_steps": 1_000}, "1,000 of 1,500 steps are warm-up"),
        ({"rate": 0.0}, "no weight changes"),
        ({"rate": 1e-6}, "1,500 steps change a weight by about 0.0015 at most"),
        ({"rate": 0.03}, "the learning rate is 0.03"),
        ({"batch": 1}, "the global batch is 1"),
        ({"steps": 35, "warmup_steps": 1, "rate": 3e-3}, "about 2.6 tokens are predicted for each entry"),
    ],
)  # fmt: skip
def test_each_fault_is_found_alone(changes, what):
    found = asked_for(**changes)
    assert len(found) == 1
    assert what in found[0][0]


def test_a_pretrained_start_and_other_optimizers_are_exempt():
    assert not asked_for(rate=1e-6, steps=50, warmup_steps=1, from_scratch=False)  # the checkpoint has learned
    assert not asked_for(rate=0.5, optimizer="sgd")  # whose step is not the rate
    assert not asked_for(warmup_steps=10_000, schedule="constant")


@pytest.mark.parametrize(("loss", "told"), [(6.39, False), (6.41, True), (float("nan"), True)])
def test_a_loss_not_below_unigram_is_reported_after_training_only(loss, told, capsys):
    for when in ("before", "after"):
        report_heldout(when, {"eval_mlm_loss": loss}, {"unigram_mlm_loss": 6.40})
        said = capsys.readouterr().out.splitlines()
        assert len(said) == (2 if told and when == "after" else 1)
    if told:
        assert said[1].startswith(f"! the held-out MLM loss {loss:.3f} is not below 6.400")
