"""The denominator of `train_mfu`: products as the run makes them, and never less than the run itself made."""

import time
from types import SimpleNamespace

import pytest
import torch
from helpers.many_runs import benchmark_matmul
from helpers.trainer_runs import make
from tiny import tiny_config

from bert_hf.models import flops
from bert_hf.models.flops import model_matmul_rate
from bert_hf.pretraining import throughput
from bert_hf.pretraining import trainer as trainer_module

CPU = torch.device("cpu")
OPTIONS = {"steps": 4, "logging_steps": 2, "save_strategy": "no", "eval_strategy": "no"}


@pytest.fixture(autouse=True)
def measured(monkeypatch):
    """Other tests take a constant."""
    monkeypatch.setattr(flops, "_benchmark_matmul", benchmark_matmul)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16), ("no", torch.float32)]
)
def test_products_are_of_the_precision_of_the_run(tmp_path, tokenizer, monkeypatch, precision, dtype):
    trainer = make(tmp_path, tokenizer, **OPTIONS)
    monkeypatch.setattr(type(trainer.accelerator), "mixed_precision", precision)
    monkeypatch.setattr(trainer.args, "bf16", precision == "bf16")
    made, empty = set(), torch.empty

    def remember(*args, **kwargs):
        made.add(kwargs.get("dtype"))
        return empty(*args, **{**kwargs, "dtype": torch.float32})  # a CPU takes its time in 16 bit

    monkeypatch.setattr(torch, "empty", remember)
    trainer._throughput.end_line(100.0, 1e6)
    assert made == {dtype}


def test_the_time_of_measuring_is_not_the_run_s(tmp_path, tokenizer, monkeypatch):
    late = SimpleNamespace(seconds=0.0)
    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + late.seconds)

    def measure(*args):
        late.seconds += 1e6
        return 1e15

    monkeypatch.setattr(throughput, "time", clock)
    monkeypatch.setattr(trainer_module, "model_matmul_rate", measure)
    trainer = make(tmp_path, tokenizer, **OPTIONS)
    trainer.train()
    assert late.seconds == 1e6
    assert trainer._throughput.whole_run["seconds"] < 1e5


def test_the_products_are_those_of_the_model(monkeypatch):
    shapes, config = [], tiny_config(vocab_size=1000)

    def measure(device, dtype, shape):
        shapes.append(shape)
        return float(shape == (38, 32, 1000))  # the head's is the fastest

    monkeypatch.setattr(flops, "_benchmark_matmul", measure)
    assert model_matmul_rate(CPU, torch.float32, config, 256) == 1.0
    assert {(256, 32, 32), (256, 32, 64), (256, 64, 32), (1024, 1024, 1024)} <= set(shapes)


def test_the_fastest_round_counts():
    rates = [flops._benchmark_matmul(CPU, torch.float32, shape) for shape in ((64, 64, 64), (7, 300, 11))]
    assert all(1e6 < rate < 1e15 for rate in rates)
