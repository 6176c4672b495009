"""State that ranks share and state that they must not share: two launched ranks, compared with one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.trainer_runs import make
from safetensors.torch import load_file
from transformers import TrainingArguments

from bert_hf.training.distributed import seed_of_rank

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    import ranks_worker

    folder = tmp_path_factory.mktemp("single")
    ranks_worker.main(str(folder))
    return load_file(folder / "rank_0.safetensors")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [
        sys.executable, "-m", "accelerate.commands.launch", "--config_file", "configs/accelerate/cpu_ddp.yaml",
        "--main_process_port", "0", "tests/ranks_worker.py", str(folder),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [load_file(folder / f"rank_{rank}.safetensors") for rank in range(2)]


@pytest.mark.parametrize("run", ["pairs", "alone"])
def test_activation_checkpointing_with_pairs_and_without(single, ranks, run):
    assert f"{run}/failed" not in ranks[0], bytes(ranks[0][f"{run}/failed"].tolist()).decode()
    for name in [name for name in single if name.startswith(f"{run}/update/")]:
        torch.testing.assert_close(ranks[0][name], single[name], rtol=1e-4, atol=1e-7)


def test_ddp_looks_for_unused_weights_only_where_there_are_some(ranks):
    assert [bool(ranks[0][f"{run}/looks"]) for run in ("pairs", "alone")] == [False, True]


def test_ranks_draw_dropout_masks_of_their_own(single, ranks):
    masks = [rank["mask"] for rank in ranks]
    agree = (masks[0] == masks[1]).float().mean().item()
    assert 0.3 < agree < 0.7  # half of 256, as of independent ones
    assert torch.equal(masks[0], single["mask"])  # the first rank's are those of one process


def test_the_order_of_the_rows_is_one_order(ranks):
    """In each epoch every row once, also in a second `train`, when the ranks' generators differ."""
    rows = torch.stack([rank["rows"] for rank in ranks])  # (rank, train, epoch, row)
    for train in range(2):
        for epoch in range(2):
            assert sorted(rows[:, train, epoch].flatten().tolist()) == list(range(16)), (train, epoch)


def test_seeds_of_ranks_differ_from_those_of_neighbouring_seeds():
    seeds = {seed_of_rank(seed, rank) for seed in range(40, 45) for rank in range(64)}
    assert len(seeds) == 5 * 64
    assert not seeds & set(range(40, 45))


def test_one_process_draws_what_it_drew(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, steps=1)
    trainer._tr_loss = torch.zeros(())
    state = torch.random.get_rng_state()
    trainer.begin_training()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_resumed_rank_draws_the_masks_that_follow_its_checkpoint(tmp_path, tokenizer, monkeypatch):
    """Seeding comes first, the generators of the checkpoint after it."""
    monkeypatch.setattr(TrainingArguments, "process_index", 1)
    whole = make(tmp_path / "whole", tokenizer, steps=4, save_strategy="no", eval_strategy="no")
    resumed = make(tmp_path / "cut", tokenizer, steps=4, save_strategy="no", eval_strategy="no")
    for trainer in (whole, resumed):
        trainer._tr_loss, trainer._total_loss_scalar, trainer._globalstep_last_logged = torch.zeros(()), 0.0, 0
    whole.begin_training()
    torch.rand(100)
    whole._save_rng_state(str(tmp_path))
    expected = torch.rand(8)
    resumed.begin_training()
    resumed._load_rng_state(str(tmp_path))
    assert torch.equal(torch.rand(8), expected)
