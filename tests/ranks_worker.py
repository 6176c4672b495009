"""Draws, reads and options of each rank of a data-parallel run; in one process it is the reference.

    python tests/ranks_worker.py OUT

Writes OUT/rank_R.safetensors: the first dropout mask, the rows of two shuffled epochs in each of two `train`, and of a
run with activation checkpointing, with pairs and without, whether DDP looks for unused weights, and the update; the
weights after three steps of Muon, and how many matrices this rank has orthogonalised; how a run ends of which one rank
is asked to.
"""

import contextlib
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from safetensors.torch import save_file
from tiny import TinyStore, tiny_config, tiny_tokenizer
from torch import nn
from transformers import TrainerCallback

from bert_hf import BertForPreTraining, DataCollatorForPreTraining, PreTrainer, ResumableTrainer
from bert_hf.config.training_arguments import FineTuningArguments, PreTrainingArguments
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.data.examples.samplers import Phase
from bert_hf.errors import RunInterrupted
from bert_hf.models import functional
from bert_hf.training import preemption
from bert_hf.training.optimization import muon

COMMON = {"save_strategy": "no", "disable_tqdm": True, "report_to": "none", "bf16": False, "max_grad_norm": 0.0}
LARGE = 4096.0  # learning rate of one step, so that the update is the gradient


def pretrainer(out: Path, dropout: float, nsp: bool, steps: int = 1, rate: float = LARGE) -> PreTrainer:
    """Plain SGD steps on 16 examples each, whatever the number of ranks."""
    args = PreTrainingArguments(
        output_dir=str(out), max_steps=steps, per_device_train_batch_size=16, learning_rate=rate, warmup_steps=0,
        lr_scheduler_type="constant", gradient_checkpointing=True, use_cpu=torch.accelerator.is_available(), **COMMON,
    )  # fmt: skip
    args.per_device_train_batch_size //= args.world_size
    torch.manual_seed(0)
    model = BertForPreTraining(tiny_config(dropout))
    examples = PreTrainingExamples(TinyStore(longest=12), (Phase(48, None),), nsp=nsp, seed=3)
    collator = DataCollatorForPreTraining(tiny_tokenizer(), nsp=nsp)
    return PreTrainer(model, args, collator, examples, optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": rate}))


def update_of(out: Path, nsp: bool) -> dict[str, torch.Tensor]:
    trainer = pretrainer(out, 0.0, nsp)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    try:
        trainer.train()
    except RuntimeError as error:
        return {"failed": torch.tensor(list(str(error).encode()))}
    after = trainer.model.state_dict()
    update = {f"update/{name}": (after[name] - before[name]) / LARGE for name in before}
    return {**update, "looks": torch.tensor(getattr(trainer.model_wrapped, "find_unused_parameters", False))}


def first_mask(out: Path) -> torch.Tensor:
    """Of the first step's first dropout."""
    masks, keep_mask = [], functional.keep_mask
    functional.keep_mask = lambda *args: masks.append(keep_mask(*args)) or masks[-1]
    pretrainer(out, 0.5, True).train()
    functional.keep_mask = keep_mask
    return masks[0].flatten()[:256].float().clone()


class AskToEnd(TrainerCallback):
    """Counts the host collectives of each step, and asks the last rank to end the run during the second one."""

    def __init__(self):
        self.collectives: list[int] = []
        self.reduce, self.gather = dist.all_reduce, dist.all_gather_object
        dist.all_reduce = lambda *a, group=None, **k: self.count(group) or self.reduce(*a, group=group, **k)
        dist.all_gather_object = lambda *a, group=None: self.count(group) or self.gather(*a, group=group)

    def count(self, group: object) -> None:
        if group is not None and self.collectives:  # the default group is the device's
            self.collectives[-1] += 1

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        self.collectives.append(0)
        if state.global_step == 1 and args.process_index == args.world_size - 1:
            preemption._requested_by = "SIGTERM"

    def restore(self) -> None:
        dist.all_reduce, dist.all_gather_object = self.reduce, self.gather
        preemption._requested_by = None


def stopped_run(out: Path) -> torch.Tensor:
    """The host collectives of a run's first step, and the step after which it ends."""
    trainer = pretrainer(out, 0.0, True, steps=9, rate=0.1)
    trainer.add_callback(asking := AskToEnd())
    with contextlib.suppress(RunInterrupted):
        trainer.train()
    asking.restore()
    return torch.tensor([asking.collectives[0], trainer.state.global_step])


def rows_read(out: Path) -> torch.Tensor:
    """(2, 2, rows of this rank): which of 16 rows two `train` of two epochs each have read."""
    seen: list[int] = []

    def collate(features: list[dict]) -> dict:
        seen.extend(feature["number"] for feature in features)
        return {
            "input_ids": torch.ones(len(features), 4, dtype=torch.long),
            "labels": torch.zeros(len(features)).long(),
        }

    args = FineTuningArguments(
        output_dir=str(out), num_train_epochs=2, per_device_train_batch_size=2, train_sampling_strategy="random",
        eval_strategy="no", remove_unused_columns=False, use_cpu=torch.accelerator.is_available(), **COMMON,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(tiny_config(num_labels=2))
    trainer = ResumableTrainer(model, args, collate, [{"number": number} for number in range(16)])
    for _ in range(2):
        trainer.train()
    return torch.tensor(seen).view(2, 2, -1)


def steps_of_muon() -> dict[str, torch.Tensor]:
    """Three steps with gradients that are the same on all ranks, in both precisions."""
    calls, orthogonalize = [], muon.orthogonalize
    muon.orthogonalize = lambda *args: calls.append(1) or orthogonalize(*args)
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        generator = torch.Generator().manual_seed(0)
        shapes = [(8, 8), (8, 32), (32, 8), (8, 8), (16, 8)]
        weights = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
        other = nn.Parameter(torch.zeros(4))
        rates = {"lr": 0.1, "weight_decay": 0.01}
        optimizer = muon.MuonWithAdamW([{"params": weights, **rates}], [{"params": [other], **rates}], dtype=dtype)
        for _ in range(3):
            for weight in weights:
                weight.grad = torch.randn(weight.shape, generator=generator)
            optimizer.step()
        found |= {f"{dtype}/{index}": weight.detach() for index, weight in enumerate(weights)}

    muon.orthogonalize = orthogonalize
    return {**found, "calls": torch.tensor(len(calls))}


def main(out: str) -> None:
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"pairs/{name}": value for name, value in update_of(folder / "pairs", True).items()}
    tensors |= {f"alone/{name}": value for name, value in update_of(folder / "alone", False).items()}
    if "alone/failed" not in tensors:  # the ranks are still in step
        tensors |= {"mask": first_mask(folder / "mask"), "rows": rows_read(folder / "rows")}
        tensors["stopped"] = stopped_run(folder / "stopped")
    tensors |= {f"muon/{name}": value for name, value in steps_of_muon().items()}
    rank = os.environ.get("RANK", "0")
    save_file(
        {name: value.contiguous().clone() for name, value in tensors.items()}, folder / f"rank_{rank}.safetensors"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
