"""Makes one SGD step, and an epoch, of each head in whatever layout it is launched in, and saves the updates.

    python tests/finetuning_layout_worker.py OUT MICRO_BATCH ACCUMULATION

The learning rate is so large that the update is the gradient: rounding then loses digits of the weights alone. The
rows of an epoch are not a multiple of the global batch.
"""

import os
import sys
from pathlib import Path

import torch
from helpers.downstream import RANDOM_HEADS, ROWS, make_finetuner, make_model
from helpers.many_runs import prepare_for_many_runs
from safetensors.torch import save_file
from tiny import TinyStore, tiny_config, tiny_tokenizer
from transformers import TrainingArguments

from bert_hf import BertForPreTraining, DataCollatorForPreTraining, PreTrainer
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.data.examples.samplers import Phase

LARGE = 4096.0


def gradients(folder: Path, micro: int, accumulation: int) -> dict[str, torch.Tensor]:
    """The gradient of each parameter of each head, `HEAD/PARAMETER`."""
    found = {}
    for head in RANDOM_HEADS:
        trainer = make_finetuner(
            folder / head.__name__, head, learning_rate=LARGE, weight_decay=0.0, max_steps=1,
            per_device_train_batch_size=micro, gradient_accumulation_steps=accumulation, optim="sgd",
            use_cpu=torch.accelerator.is_available(),
        )  # fmt: skip
        trainer.train()
        before = make_model(trainer.head).state_dict()
        for name, value in trainer.network.state_dict().items():
            found[f"{head.__name__}/{name}"] = (before[name] - value.cpu()) / LARGE
    return found


def epochs(folder: Path, micro: int, accumulation: int) -> dict[str, torch.Tensor]:
    """The update of each parameter in an epoch, `epoch-HEAD/PARAMETER`: also of pre-training on ready rows."""
    found = {}
    sizes = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": accumulation}
    trainers = [
        make_finetuner(folder / f"epoch-{head.__name__}", head, learning_rate=1.0, weight_decay=0.0, **sizes)
        for head in RANDOM_HEADS
    ]
    trainers.append(make_pretrainer(folder / "epoch-PreTraining", **sizes))
    for trainer in trainers:
        before = {name: value.detach().clone() for name, value in trainer.network.state_dict().items()}
        trainer.train()
        assert trainer.state.global_step == 2
        name = Path(trainer.args.output_dir).name
        for key, value in trainer.network.state_dict().items():
            found[f"{name}/{key}"] = value.cpu() - before[key]
    return found


def make_pretrainer(folder: Path, **options) -> PreTrainer:
    """A trainer on rows that are masked already, with a plain collator."""
    torch.manual_seed(0)
    collator = DataCollatorForPreTraining(tiny_tokenizer())
    examples = PreTrainingExamples(TinyStore(200, longest=12), (Phase(48, None),), seed=3)
    rows = [{name: value[0] for name, value in collator([examples[n]]).items()} for n in range(ROWS)]

    def collate(features: list[dict]) -> dict[str, torch.Tensor]:
        names = ("input_ids", "attention_mask", "token_type_ids", "labels")
        fill = {"labels": -100}
        batch = {
            name: torch.nn.utils.rnn.pad_sequence([row[name] for row in features], True, fill.get(name, 0))
            for name in names
        }
        return {**batch, "next_sentence_label": torch.stack([row["next_sentence_label"] for row in features])}

    defaults = {
        "learning_rate": 0.5, "weight_decay": 0.0, "lr_scheduler_type": "constant", "warmup_steps": 0, "seed": 3,
        "max_grad_norm": 0.0, "num_train_epochs": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True,
        "use_cpu": True, "bf16": False, "optim": "sgd", "train_sampling_strategy": "sequential",
        "remove_unused_columns": False,
    }  # fmt: skip
    args = TrainingArguments(output_dir=str(folder), **{**defaults, **options})
    return PreTrainer(BertForPreTraining(tiny_config(dropout=0.0)), args, collate, rows)


def main(out: str, micro: str, accumulation: str) -> None:
    prepare_for_many_runs()
    sizes = Path(out), int(micro), int(accumulation)
    found = gradients(*sizes) | epochs(*sizes)
    rank = os.environ.get("RANK", "0")
    save_file({name: value.contiguous().clone() for name, value in found.items()}, f"{out}/rank_{rank}.safetensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
