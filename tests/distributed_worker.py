"""A rank of the launches in training/test_distributed.py: layout_worker.py and what else needs several ranks.

    python tests/distributed_worker.py OUT [operator]

All in one process, because starting one takes longer than what it computes. With `operator`, DeepSpeed compiles its
shared-memory all-reduce first, as it does in a run: a minute or two. It is used for inference and not here.
"""

import sys
from pathlib import Path

import layout_worker
import ranks_worker
from helpers.many_runs import prepare_for_many_runs
from helpers.trainer_runs import make
from tiny import tiny_tokenizer

from bert_hf.config.hardware import engine, shards_weights


def main(out: str, operator: str = "") -> None:
    folder = Path(out)
    under_deepspeed = engine() == "deepspeed"
    if under_deepspeed and not operator:
        import deepspeed

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

    prepare_for_many_runs()
    layout_worker.main(str(folder / "layout"), "32", "1")
    if under_deepspeed:
        layout_worker.train(folder / "bf16", 32, 1, 2, 0.05, stock=False, bf16=True)
    elif shards_weights():
        run_and_resume_muon(folder)
    else:
        ranks_worker.main(str(folder / "ranks"))


def run_and_resume_muon(folder: Path) -> None:
    options = {"micro": 8, "accumulation": 1, "steps": 4, "save_strategy": "steps", "save_steps": 2, "optim": "muon"}
    make(folder / "whole", tiny_tokenizer(), **options).train()
    resumed = make(folder / "resumed", tiny_tokenizer(), **options)
    resumed.train(resume_from_checkpoint=folder / "whole/checkpoint-2")


if __name__ == "__main__":
    main(*sys.argv[1:])
