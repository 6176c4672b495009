"""A rank of a short run on a file system that shows other ranks' files late, as NFS does: test_shared_folders.py.

    python tests/late_files_worker.py OUT SECONDS [WAITS]

Files of other ranks are hidden for SECONDS after they were written; WAITS replaces the seconds that a rank waits.
"""

import errno
import os
import re
import sys
import time
from pathlib import Path

from helpers.trainer_runs import make
from tiny import tiny_tokenizer

from bert_hf.errors import one_line_errors
from bert_hf.training.checkpoints import checkpoint_files


def hide_files_of_other_ranks(seconds: float) -> None:
    stat, scandir = os.stat, os.scandir
    rank = os.environ["RANK"]

    def is_late(path) -> bool:
        match = re.fullmatch(r"rank_(\d+)\.safetensors", Path(path).name) if isinstance(path, str | Path) else None
        return bool(match) and match[1] != rank and time.time() - stat(path).st_mtime < seconds

    def late_stat(path, *args, **named):
        if is_late(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return stat(path, *args, **named)

    class LateEntries:
        def __init__(self, *args):
            self.entries = scandir(*args)

        def __iter__(self):
            return (entry for entry in self.entries if not is_late(entry.path))

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.entries.close()

    os.stat, os.scandir = late_stat, LateEntries


@one_line_errors
def main(out: str, seconds: str, waits: str | None = None) -> int:
    if waits is not None:
        checkpoint_files.VISIBLE_WITHIN = float(waits)
    hide_files_of_other_ranks(float(seconds))
    make(Path(out), tiny_tokenizer(), micro=4, accumulation=1, steps=2, phases=False, save_minutes=0, save_steps=2,
         eval_strategy="no").train()  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
