import json
import re
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from helpers.argument_classes import FINETUNING_RECIPES, PRETRAIN
from transformers import BertConfig

from bert_hf.config.parser import parse

ROOT = Path(__file__).parents[2]
HEADINGS = ["Model", "Data", "Training", "Hub"]


def files(pattern):
    found = sorted(ROOT.glob(pattern))
    assert found
    return pytest.mark.parametrize("path", found, ids=lambda path: path.stem)


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "heads"),
    [
        ("tiny", 2, 128, 2),
        ("mini", 4, 256, 4),
        ("small", 4, 512, 8),
        ("medium", 8, 512, 8),
        ("base", 12, 768, 12),
        ("large", 24, 1024, 16),
    ],
)
def test_models_have_the_published_sizes(name, layers, hidden, heads):
    config = BertConfig.from_json_file(ROOT / f"configs/model/{name}.json")
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (layers, hidden, heads)
    assert (config.intermediate_size, config.vocab_size, config.max_position_embeddings) == (4 * hidden, 30522, 512)


@files("configs/pretrain/*.yaml")
def test_pretraining_runs_parse(path):
    *_, shape, args = parse(PRETRAIN, ["--config", str(path)])
    assert args.output_dir
    check_style(path)
    if "paper" in path.stem:
        ranks = 8  # as its arithmetic says
        assert args.per_device_train_batch_size * args.gradient_accumulation_steps * ranks == 256
        assert (args.max_steps, args.warmup_steps, args.learning_rate) == (1_000_000, 10_000, 1e-4)
        assert (shape.max_seq_length, shape.long_seq_length, shape.long_seq_fraction) == (128, 512, 0.1)
        assert (args.adam_beta1, args.adam_beta2, args.adam_epsilon, args.weight_decay) == (0.9, 0.999, 1e-6, 0.01)


@files("configs/finetune/*.yaml")
def test_finetuning_runs_parse(path):
    recipe = re.search(r"recipes/(\w+)\.py", path.read_text())
    task_args, args = parse(FINETUNING_RECIPES[recipe[1]], ["--config", str(path)])
    check_style(path)
    if args.learning_rate is not None or task_args.max_seq_length > 128:  # of BERT-base: not for a small checkpoint
        assert "--model_name_or_path google-bert/bert-base-" in path.read_text().partition("\n")[0]


def check_style(path):
    """Flat, under the headings in their order, the launch line first, every file it names there."""
    text = path.read_text()
    assert text.startswith("# accelerate launch --config_file ")
    found = [
        line[2:].split(":")[0]
        for line in text.splitlines()
        if line.startswith("# ") and line[2:].split(":")[0] in HEADINGS
    ]
    assert found == [heading for heading in HEADINGS if heading in found]
    values = yaml.safe_load(text)
    assert not any(isinstance(value, dict) for value in values.values())
    named = [
        word
        for word in text.replace("[", " ").replace("]", " ").split()
        if word.startswith(("configs/", "recipes/", "src/"))
    ]
    for word in named:
        assert (ROOT / word.rstrip(".,:)")).exists(), word


@files("configs/accelerate/*.yaml")
def test_machines_are_known_to_accelerate(path):
    config = load_config_from_file(str(path))
    assert config.num_processes == (2 if path.stem.startswith("cpu_") else "auto")  # auto: of torchrun, one per GPU
    engine = getattr(config, "deepspeed_config", None) or {}
    if engine:
        settings = json.loads((ROOT / engine["deepspeed_config_file"]).read_text())
        assert settings["zero_optimization"]["stage"] == int(path.stem[-1])
        assert "optimizer" not in settings  # the run's optimizer is used


def test_the_default_machine_names_neither_cpu_nor_gpu():
    values = yaml.safe_load((ROOT / "accelerate_config.yaml").read_text())
    assert not {"use_cpu", "gpu_ids", "mixed_precision"} & values.keys()
    assert values["distributed_type"] == "NO"
