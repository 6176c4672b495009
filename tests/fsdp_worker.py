"""FSDP2 on two CPU ranks: the updates of layout_worker.py, and a resumed run of Muon.

python tests/fsdp_worker.py OUT
"""

import sys
from pathlib import Path

import layout_worker
from helpers.many_runs import prepare_for_many_runs
from helpers.trainer_runs import make
from tiny import tiny_tokenizer


def main(out: str) -> None:
    folder = Path(out)
    options = {"micro": 8, "accumulation": 1, "steps": 4, "save_strategy": "steps", "save_steps": 2, "optim": "muon"}
    prepare_for_many_runs()
    layout_worker.main(str(folder / "layout"), "32", "1")
    make(folder / "whole", tiny_tokenizer(), **options).train()
    resumed = make(folder / "resumed", tiny_tokenizer(), **options)
    resumed.train(resume_from_checkpoint=folder / "whole/checkpoint-2")


if __name__ == "__main__":
    main(*sys.argv[1:])
