"""A rank of a launch in training/test_restarts.py: a whole run, then the same run, whose last rank is killed once.

python tests/restart_worker.py OUT
"""

import os
import signal
import sys
from pathlib import Path

from helpers.many_runs import prepare_for_many_runs
from helpers.trainer_runs import make
from tiny import tiny_tokenizer
from transformers import TrainerCallback

ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


class KillLastRank(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if (ATTEMPT, args.process_index, state.global_step) == (0, args.world_size - 1, 5):
            os.kill(os.getpid(), signal.SIGKILL)


def main(out: Path) -> None:
    print(f"attempt {ATTEMPT}\n", end="", flush=True)
    prepare_for_many_runs()
    options = {"accumulation": 1, "steps": 8, "save_strategy": "steps", "save_steps": 2, "eval_strategy": "no"}
    if not (out / "whole/checkpoint-8").exists():
        make(out / "whole", tiny_tokenizer(), **options).train()
    trainer = make(out / "killed", tiny_tokenizer(), **options)
    trainer.add_callback(KillLastRank())
    trainer.train(resume_from_checkpoint=bool(ATTEMPT))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
