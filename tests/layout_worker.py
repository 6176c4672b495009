"""Trains the same model on the same examples in whatever layout it is launched in, and saves what came out.

    python tests/layout_worker.py OUT MICRO_BATCH ACCUMULATION [ours|stock]

Global batch 64. First one plain SGD step with a learning rate so large that the update is the gradient (rounding then
loses digits of the weights, and none of the gradient), then twenty small ones; and two steps of Muon, where the engine
has it. Dropout 0, fp32.
"""

import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from tiny import TinyStore, tiny_config, tiny_tokenizer
from torch.distributed.tensor import DTensor

from bert_hf import BertForPreTraining, DataCollatorForPreTraining, PreTrainer
from bert_hf.config.hardware import engine
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.data.examples.samplers import Phase

LARGE = 4096.0


def train(
    out: Path,
    micro: int,
    accumulation: int,
    steps: int,
    lr: float,
    stock: bool,
    optim: str = "sgd",
    bf16: bool = False,
) -> tuple[dict, list[float]]:
    """The update of each parameter, and the logged losses."""
    args = PreTrainingArguments(
        str(out / f"run-{steps}"), max_steps=steps, per_device_train_batch_size=micro,
        gradient_accumulation_steps=accumulation, learning_rate=lr, muon_learning_rate=lr,
        optim="muon" if optim == "muon" else "adamw_torch_fused", weight_decay=0.0, lr_scheduler_type="constant",
        warmup_steps=0, max_grad_norm=0.0, save_strategy="steps" if steps > 1 else "no",
        save_steps=steps, disable_tqdm=True, report_to="none", bf16=bf16, logging_steps=1 if stock else 3,
        use_cpu=torch.accelerator.is_available(),  # elsewhere it must be found out
    )  # fmt: skip
    torch.manual_seed(0)
    family = transformers if stock else sys.modules[BertForPreTraining.__module__]
    model = family.BertForPreTraining(tiny_config(dropout=0.0))
    before = {name: value.detach().clone() for name, value in model.state_dict().items()}
    examples = PreTrainingExamples(TinyStore(200, longest=12), (Phase(48, None),), short_seq_probability=0.5, seed=3)
    collator = DataCollatorForPreTraining(tiny_tokenizer())
    # By class: Trainer drops an optimizer that was passed in ready-made when it runs under DeepSpeed.
    optimizer = {"optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": lr})} if optim == "sgd" else {}
    kind = transformers.Trainer if stock else PreTrainer
    if stock:  # the stock Trainer needs rows it can shuffle itself, and no positions
        args.remove_unused_columns = False
        rows = [examples[i % len(examples)] for i in range(64 * steps)]
        args.train_sampling_strategy = "sequential"
        trainer = kind(model, args, _without_positions(collator), rows, **optimizer)
    else:
        trainer = kind(model, args, collator, examples, **optimizer)
    trainer.train()
    after = trainer.accelerator.unwrap_model(trainer.model_wrapped).state_dict()
    update = {name: (_whole(after[name]).detach().cpu() - before[name]) / lr for name in before}
    return update, [row[name] for row in trainer.state.log_history for name in ("loss", "train_loss") if name in row]


def _whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _without_positions(collator):
    def collate(features):
        batch = collator(features)
        del batch["masked_positions"]
        return batch

    return collate


def main(out: str, micro: str, accumulation: str, family: str = "ours") -> None:
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    parts = [("gradient", 1, LARGE, "sgd"), ("update", 20, 0.05, "sgd")]
    if engine() != "deepspeed" and family == "ours":
        parts.append(("muon", 2, 0.002, "muon"))
    for name, steps, lr, optim in parts:
        update, losses = train(folder, int(micro), int(accumulation), steps, lr, family == "stock", optim)
        tensors |= {f"{name}/{key}": value.contiguous().clone() for key, value in update.items()}
        tensors[f"losses/{name}"] = torch.tensor(losses, dtype=torch.float64)
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        save_file(tensors, folder / "result.safetensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
