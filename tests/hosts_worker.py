"""A rank of a run on two hosts, which are two launchers on this machine: training/test_hosts.py.

    HOST=name python tests/hosts_worker.py FAULT RECIPE WORDS…

FAULT is what differs on the second host: see `FAULTS`. Environment: OTHER, a folder of that host alone.
"""

import os
import socket
import sys
import time
from pathlib import Path

from helpers.recipe_runs import recipe

from bert_hf.config import training_arguments
from bert_hf.training.checkpoints import checkpoint_files, trainer_state


def other_version() -> None:
    trainer_state.version = lambda name: "0.1.0"


def replace_words(**values: str) -> None:
    """Gives options other values, as another host's folders or YAML files do."""
    for name, value in values.items():
        sys.argv[sys.argv.index(f"--{name}") + 1] = value


def refuse_cache() -> None:
    place = Path(os.environ["OTHER"]) / "file"
    place.write_text("a file where the cache should be")
    replace_words(cache_dir=str(place))


def own_folder() -> None:
    checkpoint_files.VISIBLE_WITHIN = 2.0
    replace_words(output_dir=os.environ["OTHER"] + "/run")


def own_text() -> None:
    other = Path(os.environ["OTHER"]) / "text.txt"
    text = Path(sys.argv[sys.argv.index("--train_file") + 1]).read_text()
    other.write_text(text.replace("Topic", "Subject"))
    replace_words(train_file=str(other), cache_dir=os.environ["OTHER"])


def hang() -> None:
    time.sleep(60)


FAULTS = {
    "text": lambda: replace_words(train_file="missing.txt"),
    "tokenizer": lambda: replace_words(tokenizer_name="missing"),
    "option": lambda: replace_words(seed="x"),
    "seed": lambda: replace_words(seed="2"),
    "cache": refuse_cache,
    "folder": own_folder,
    "version": other_version,
    "corpus": own_text,
    "hangs": hang,
}

if __name__ == "__main__":
    fault, name, *words = sys.argv[1:]
    host = os.environ["HOST"]
    socket.gethostname = lambda: host
    sys.argv = [name, *words]
    if host == "host-b":
        FAULTS[fault]()
    join_ranks = training_arguments.join_ranks
    training_arguments.join_ranks = lambda args: print("waiting", flush=True) or join_ranks(args)
    sys.exit(recipe(name)(sys.argv[1:]))
