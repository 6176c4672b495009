"""Formulas compared with the published models and speeds."""

from pathlib import Path

import pytest
import torch
from transformers import BertConfig

from bert_hf.analysis.estimate import DEVICES, REAL_TOKENS, Plan, expected_mfu, find_device
from bert_hf.models.flops import matmul_rate, parameter_count, training_flops

ROOT = Path(__file__).parents[2]
H200 = DEVICES["h200"]


def model(name: str) -> BertConfig:
    return BertConfig.from_json_file(ROOT / f"configs/model/{name}.json")


def plan(name: str = "base", **changes) -> Plan:
    settings = {"device": H200, "mfu": 0.3, "phases": ((128, 900_000), (512, 100_000))}
    settings |= {"micro_batch_length": 128, "global_batch": 256, "micro_batch": 32}
    return Plan(model(name), **{**settings, **changes})


@pytest.mark.parametrize(("name", "parameters"), [("base", 110_106_428), ("large", 336_226_108)])
def test_parameters_are_those_of_the_published_models(name, parameters):
    assert parameter_count(model(name)) == parameters


@pytest.mark.parametrize(
    ("name", "length", "masked", "expected"),
    [("base", 128, 0.15, 545.4e6), ("base", 512, 0.15, 587.9e6), ("large", 128, 0.15, 1878.8e6),
     ("large", 512, 0.15, 1992.0e6), ("base", 128, 1.0, 667.9e6)],
)  # fmt: skip
def test_flops_of_a_token(name, length, masked, expected):
    """6P of the encoder + 12·length·hidden·layers + the head on the masked tokens, all by hand."""
    assert training_flops(model(name), length, length**2, masked * length) / length == pytest.approx(expected, 1e-3)


PUBLISHED = [
    ("DeepSpeed, BERT-large, 128", "large", 128, 0.15, "v100-32gb", 1, 272, -0.14),
    ("DeepSpeed, BERT-large, 512", "large", 512, 0.15, "v100-32gb", 1, 52, 0.06),
    ("DeepLearningExamples, BERT-large, 128", "large", 128, 0.15, "v100-32gb", 1, 224, 0.045),
    ("DeepLearningExamples, BERT-large, 128, A100", "large", 128, 0.15, "a100-80gb", 1, 580, 0.005),
    ("DeepLearningExamples, BERT-large, 128, 256 × A100", "large", 128, 0.15, "a100-80gb", 256, 138_294, 0.08),
    ("MosaicML, BERT-base, 128, head on all tokens", "base", 128, 1.0, "a100-80gb", 8, 6926, 0.14),
    ("MLPerf v2.1, BERT-large, A100", "large", 255, 0.15, "a100-80gb", 8, 2440, -0.06),
    ("MLPerf v4.0, BERT-large, H200", "large", 255, 0.15, "h200", 8, 7972, -0.085),
]  # fmt: skip


def deviation(network, length, masked, device, number, published):
    config, machine = model(network), DEVICES[device]
    rows = 256 * number
    share = expected_mfu(config.hidden_size, machine)
    run = Plan(config, machine, share, ((length / REAL_TOKENS, 1),), length, rows, 64, masked=masked)
    return rows / run.seconds(number) / published - 1


@pytest.mark.parametrize("reference", PUBLISHED, ids=lambda reference: reference[0])
def test_published_speeds(reference):
    name, *conditions, expected = reference
    found = deviation(*conditions)
    assert found == pytest.approx(expected, abs=0.01), name
    assert abs(found) < 0.2


def test_published_flops():
    """DeepSpeed says 64 and 53 TFLOP/s of a V100 for its 272 and 52 sequences/s."""
    assert 272 * plan("large").flops(128 / REAL_TOKENS, 1) == pytest.approx(64e12, rel=0.03)
    assert 52 * plan("large").flops(512 / REAL_TOKENS, 1) == pytest.approx(53e12, rel=0.03)


def test_time_of_one_device_is_flops_over_rate():
    run = plan(phases=((128, 10),), micro_batch=256, global_batch=4096)
    assert run.seconds(1) == pytest.approx(10 * run.flops(128, 4096) / (989e12 * 0.3))
    assert run.seconds(8) == pytest.approx(run.seconds(1) / 8)


def test_the_cpu_is_measured():
    device = find_device("cpu")
    assert 0.1 < device.peak / matmul_rate(torch.device("cpu"), torch.float32) < 10  # the machine may be busy
    run = plan("tiny", device=device, micro_batch=1, phases=((128, 1),))
    assert run.seconds(1) == pytest.approx(run.flops(128, 256) / (device.peak * 0.3))  # no launches


def test_shorter_rows_come_first_in_batches_of_as_many_rows():
    """A phase of 32 tokens before that of 128 has no more rows at once: both wait for as many launches."""
    usual = plan(phases=((128, 10),), micro_batch=4)
    warmed = plan(phases=((32, 10), (128, 10)), micro_batch=4)
    assert warmed.seconds(64) == pytest.approx(2 * usual.seconds(64))
