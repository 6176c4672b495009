"""The precision of a run: by a rule of CPU feature and model size."""

import json
from types import SimpleNamespace

import precision as benchmark
import pytest
import torch
from helpers.trainer_runs import ready_rows
from tiny import tiny_config, tiny_tokenizer
from transformers import default_data_collator

from bert_hf import BertForPreTraining, PreTrainer
from bert_hf.config import hardware, precision
from bert_hf.config.arguments import ExampleArguments, ModelArguments
from bert_hf.config.finetuning_arguments import ClassificationArguments
from bert_hf.config.precision import choose_on_cpu, resolve_precision
from bert_hf.config.training_arguments import FineTuningArguments, PreTrainingArguments
from bert_hf.finetuning.run import identity_of
from bert_hf.pretraining.start import pretraining_identity


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in ("ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_DEEPSPEED"):
        monkeypatch.delenv(name, raising=False)


def on_a_cpu_with(monkeypatch, units):
    monkeypatch.setattr(precision, "cpu_bf16_feature", lambda: units)


@pytest.mark.parametrize(
    ("feature", "hidden_size", "bf16"),
    [
        ("none", 128, False), ("none", 256, False), ("none", 768, False), ("none", None, False),
        ("avx512_bf16 of AMD", 128, False), ("avx512_bf16 of AMD", 255, False), ("avx512_bf16 of AMD", 256, True),
        ("avx512_bf16 of Intel", 256, False), ("avx512_bf16 of Intel", 768, False),
        ("amx_bf16", 128, False), ("amx_bf16", 256, True), ("amx_bf16", 1024, True), ("amx_bf16", None, False),
    ],
)  # fmt: skip
def test_the_rule(feature, hidden_size, bf16):
    choice = choose_on_cpu(feature, hidden_size)
    assert choice.bf16 is bf16
    assert ("no bf16 units" in choice.reason) == (feature == "none")
    assert ("fp32 is faster" in choice.reason) == (feature == "avx512_bf16 of Intel")
    assert "fp32" in choice.reason or feature == "none" or f"{hidden_size or 'unknown'}; bf16 pays" in choice.reason


@pytest.mark.parametrize(
    ("amx", "avx512", "name", "feature"),
    [
        (True, True, "CPU Intel(R) Xeon(R) Processor", "amx_bf16"),
        (False, True, "CPU Intel(R) Xeon(R) Processor", "avx512_bf16 of Intel"),  # a virtual machine without AMX
        (False, True, "CPU AMD EPYC 9R14", "avx512_bf16 of AMD"),
        (False, False, "CPU AMD EPYC 7R13", "none"),
    ],
)
def test_the_bf16_feature_of_a_cpu(monkeypatch, amx, avx512, name, feature):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(precision, "device_name", lambda device: name)
    assert precision.cpu_bf16_feature() == feature


@pytest.mark.parametrize(("hidden", "bf16"), [(128, False), (256, True)])
def test_the_trainer_chooses_by_its_model(tmp_path, monkeypatch, hidden, bf16):
    """With bf16 for the tiny model as well, on a CPU with bf16 units, it was 1.6 times slower."""
    on_a_cpu_with(monkeypatch, "avx512_bf16 of AMD")
    args = PreTrainingArguments(str(tmp_path), use_cpu=True, report_to="none", max_steps=1)
    assert args.bf16 is None
    model = BertForPreTraining(tiny_config(hidden_size=hidden, num_hidden_layers=1))
    trainer = PreTrainer(model, args, default_data_collator, ready_rows(8))
    assert (args.bf16, trainer.args.bf16) == (None, bf16)
    assert trainer.accelerator.mixed_precision == ("bf16" if bf16 else "no")
    with trainer.accelerator.autocast():
        assert torch.is_autocast_enabled("cpu") == bf16


@pytest.mark.parametrize("there", [True, False])
def test_a_gpu_multiplies_in_bf16_where_it_can(monkeypatch, there):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: there and not including_emulation)
    args = SimpleNamespace(bf16=None, device=torch.device("cuda"), world_size=1, fp16=False)
    assert precision.choose_on_device(args, 128).bf16 is there
    args.device = torch.device("mps")
    assert not precision.choose_on_device(args, 768).bf16


@pytest.mark.parametrize(
    ("given", "launcher", "bf16", "fp16", "mixed"),
    [
        ({}, "no", None, False, "no"),
        ({}, "bf16", True, False, "bf16"),
        ({}, "fp16", False, True, "fp16"),
        ({"fp16": True}, "no", False, True, "fp16"),
        ({"bf16": True}, "no", True, False, "bf16"),
        ({"bf16": False}, "no", False, False, "no"),
        ({"bf16": False}, "bf16", False, False, "no"),  # the command wins over the machine's YAML
    ],
)
def test_a_precision_in_the_command_is_taken(tmp_path, monkeypatch, given, launcher, bf16, fp16, mixed):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launcher)
    args = PreTrainingArguments(str(tmp_path), use_cpu=True, report_to="none", **given)
    assert (args.bf16, args.fp16, args.mixed_precision) == (bf16, fp16, mixed)
    if bf16 is not None:
        resolve_precision(args, 768)
        assert (args.bf16, args.mixed_precision) == (bf16, mixed)


def test_deepspeed_on_a_cpu_takes_fp32_unless_asked(tmp_path, monkeypatch):
    """Its engine is told when the arguments are built, before any model is known."""
    on_a_cpu_with(monkeypatch, "amx_bf16")
    monkeypatch.setattr(hardware, "engine", lambda args=None: "deepspeed")
    assert PreTrainingArguments(str(tmp_path), use_cpu=True, report_to="none").bf16 is False
    assert PreTrainingArguments(str(tmp_path), use_cpu=True, report_to="none", bf16=True).bf16 is True


def asked(folder, **given):
    return PreTrainingArguments(str(folder), use_cpu=True, report_to="none", **given)


@pytest.mark.parametrize(
    ("given", "name"), [({"bf16": True}, "bf16"), ({"bf16": False}, "fp32"), ({"fp16": True}, "fp16")]
)
def test_the_identity_of_a_run_names_its_precision(tmp_path, given, name):
    args = asked(tmp_path, **given)
    text = SimpleNamespace(fingerprint="training"), SimpleNamespace(fingerprint="held out")
    identity = pretraining_identity(args, tiny_config(), tiny_tokenizer(), text, ExampleArguments(), ModelArguments())
    assert identity["precision"] == name
    args = FineTuningArguments(str(tmp_path), use_cpu=True, report_to="none", **given)
    task = SimpleNamespace(
        task_args=ClassificationArguments("m", from_scratch=True), fingerprint=dict, tokenizer=tiny_tokenizer()
    )
    assert identity_of(task, args, SimpleNamespace(config=tiny_config()))["precision"] == name


def test_the_benchmark_measures_a_row(tmp_path, capsys):
    tiny_config().to_json_file(tmp_path / "m.json")
    words = ["--config_name", str(tmp_path / "m.json"), "--batch_size", "4", "--max_seq_length", "32", "--turns", "2"]
    threads = torch.get_num_threads()
    assert benchmark.main(words) == 0
    torch.set_num_threads(threads)
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert row["rates"].keys() == {"fp32", "bf16"}
    assert row["units"] == precision.cpu_bf16_feature()
    assert row["rule"] == "fp32"  # a hidden size of 32, whatever the units
