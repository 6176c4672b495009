"""Makes one SGD step of each downstream task in whatever layout it is launched in, and saves the gradients.

    python tests/finetuning_layout_worker.py OUT MICRO_BATCH ACCUMULATION

The learning rate is so large that the update is the gradient: rounding then loses digits of the weights alone.
"""

import os
import sys
from pathlib import Path

import torch
from helpers.downstream import TASKS, make_finetuner, make_model
from helpers.many_runs import prepare_for_many_runs
from safetensors.torch import save_file

LARGE = 4096.0


def gradients(folder: Path, micro: int, accumulation: int) -> dict[str, torch.Tensor]:
    """The gradient of each parameter of each task, `TASK/PARAMETER`."""
    found = {}
    for kind in TASKS:
        trainer = make_finetuner(
            folder / kind.__name__, kind, learning_rate=LARGE, weight_decay=0.0, max_steps=1,
            per_device_train_batch_size=micro, gradient_accumulation_steps=accumulation, optim="sgd",
            use_cpu=torch.accelerator.is_available(),
        )  # fmt: skip
        trainer.train()
        before = make_model(kind, trainer.task).state_dict()
        for name, value in trainer.network.state_dict().items():
            found[f"{kind.__name__}/{name}"] = (before[name] - value.cpu()) / LARGE
    return found


def main(out: str, micro: str, accumulation: str) -> None:
    prepare_for_many_runs()
    found = gradients(Path(out), int(micro), int(accumulation))
    rank = os.environ.get("RANK", "0")
    save_file({name: value.contiguous().clone() for name, value in found.items()}, f"{out}/rank_{rank}.safetensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
