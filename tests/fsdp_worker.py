"""FSDP2 on two CPU ranks through accelerate: the updates of layout_worker.py, and a resumed run.

    python tests/fsdp_worker.py OUT [ignored]

With `ignored`, accelerate is left as it is: it ignores FSDP on CPU ranks, and the run must not train.
"""

import sys
from pathlib import Path

import layout_worker
from helpers.fsdp_on_cpu import shard_on_cpu
from helpers.many_runs import prepare_for_many_runs
from helpers.trainer_runs import make
from tiny import tiny_tokenizer


def main(out: str, ignored: str = "") -> None:
    folder = Path(out)
    options = {"micro": 8, "accumulation": 1, "steps": 4, "save_strategy": "steps", "save_steps": 2}
    if ignored:
        make(folder, tiny_tokenizer(), **options).train()
        return

    shard_on_cpu()
    prepare_for_many_runs()
    layout_worker.main(str(folder / "layout"), "32", "1")
    make(folder / "whole", tiny_tokenizer(), **options).train()
    resumed = make(folder / "resumed", tiny_tokenizer(), **options)
    resumed.train(resume_from_checkpoint=folder / "whole/checkpoint-2")


if __name__ == "__main__":
    main(*sys.argv[1:])
