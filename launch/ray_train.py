"""Trains on the workers of a Ray cluster, each of them one rank.

    pip install 'ray[train]'
    python launch/ray_train.py --workers 16 recipes/pretrain.py --config configs/pretrain/bert-base-paper.yaml \
        --train_file /shared/corpus --output_dir /shared/base

All paths must be absolute, in a folder that all workers share. If a worker is lost, Ray starts all of them again, and
the run resumes from its newest checkpoint.
"""

import argparse
import os
import runpy
import sys

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train_one_rank(settings: dict) -> None:
    """Runs the recipe in a worker: Ray has set RANK, WORLD_SIZE, MASTER_ADDR, … and made the process group."""
    os.environ["ACCELERATE_USE_CPU"] = str(settings["cpu"]).lower()
    recipe = runpy.run_path(settings["recipe"])
    code = recipe["main"](settings["words"])
    if code != 0:
        raise SystemExit(code)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on the workers of a Ray cluster.")
    parser.add_argument("--workers", type=int, required=True, help="number of ranks")
    parser.add_argument("--cpu", action="store_true", help="ranks without a GPU")
    parser.add_argument("--storage", default=None, help="folder for Ray's own records, shared by all workers")
    parser.add_argument("recipe", type=os.path.abspath)
    parser.add_argument("words", nargs=argparse.REMAINDER, help="the recipe's options")
    flags = parser.parse_args()

    trainer = TorchTrainer(
        train_one_rank,
        train_loop_config={"recipe": flags.recipe, "words": flags.words, "cpu": flags.cpu},
        scaling_config=ScalingConfig(num_workers=flags.workers, use_gpu=not flags.cpu),
        run_config=RunConfig(storage_path=flags.storage, failure_config=FailureConfig(max_failures=3)),
    )
    trainer.fit()


if __name__ == "__main__":
    sys.exit(main())
