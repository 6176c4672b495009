"""Several ranks: the same gradient and the same steps in every layout (invariant 2), and what ranks share or do not.

Starts two launchers with two ranks each, and compares with one process: tests/distributed_worker.py.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers.child_processes import ROOT, launch_ranks
from helpers.trainer_runs import make
from safetensors.torch import load_file
from transformers import TrainingArguments

from bert_hf.errors import InputError
from bert_hf.training.checkpoints.trainer_state import rank_state, save_state
from bert_hf.training.distributed import checked_engine


def launch(folder: Path, machine: str, *words: str) -> Path:
    """Two ranks of tests/distributed_worker.py; returns the folder that they wrote."""
    worker = ROOT / "tests/distributed_worker.py"
    done, log = launch_ranks(folder / "log", worker, folder / "out", *words, machine=machine)
    assert done == 0, log[-3000:]
    return folder / "out"


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    return launch(tmp_path_factory.mktemp("two_ranks"), "cpu_ddp")


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    """All 64 sequences in one batch, in this process."""
    import layout_worker

    folder = tmp_path_factory.mktemp("layout")
    layout_worker.main(str(folder), "64", "1")
    return load_file(folder / "result.safetensors")


SMALL_ULP = 2**-23 / 0.05  # last place of a weight near 1, as an update (divided by the learning rate)


def compare(got: dict, expected: dict) -> None:
    for part in ("gradient", "update"):
        names = [name for name in expected if name.startswith(f"{part}/")]
        total = torch.cat([expected[name].flatten() for name in names]).double().norm()
        difference = torch.cat([(got[name] - expected[name]).flatten() for name in names]).double().norm()
        assert difference <= 1e-5 * total, part
        for name in names:
            rounding = 1e-5 if part == "gradient" else 2e-5  # of twenty steps: 1.02e-5 with torch 2.10
            bound = rounding * expected[name].double().norm() + 1e-8 * total
            if part == "update" and name.endswith("LayerNorm.weight"):  # weights near 1: an update of 20 small steps
                bound += SMALL_ULP * expected[name].numel() ** 0.5  # is known to their last place, and no better
            assert (got[name] - expected[name]).double().norm() <= bound, name
        losses = f"losses/{part}"
        torch.testing.assert_close(got[losses], expected[losses], rtol=1e-6, atol=0)


def compare_muon(got: dict, expected: dict) -> None:
    """Orthogonalisation lifts small singular values, and their rounding, up to 500 times: 1e-4 in place of 1e-5."""
    updates = {name: value for name, value in expected.items() if name.startswith("muon/") and ".layer." in name}
    matrices = [name for name, value in updates.items() if value.ndim == 2]
    assert len(matrices) == 12
    total = torch.cat([expected[name].flatten() for name in matrices]).double().norm()
    difference = torch.cat([(got[name] - expected[name]).flatten() for name in matrices]).double().norm()
    assert difference <= 1e-4 * total
    torch.testing.assert_close(got["losses/muon"], expected["losses/muon"], rtol=1e-5, atol=0)


def test_two_data_parallel_ranks(layout, two_ranks):
    got = load_file(two_ranks / "layout/result.safetensors")
    compare(got, layout)
    compare_muon(got, layout)
    check_saved_once(two_ranks / "layout/run-20/checkpoint-20", layout)


def check_saved_once(checkpoint: Path, expected: dict) -> dict:
    """The weights of a checkpoint: those that stock code saves, and tied ones under one name."""
    saved = load_file(checkpoint / "model.safetensors")
    names = {name.removeprefix("update/") for name in expected if name.startswith("update/")}
    assert saved.keys() == names - {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    return saved


def check_zero_2(folder: Path, expected: dict) -> None:
    compare(load_file(folder / "layout/result.safetensors"), expected)
    checkpoint = folder / "layout/run-20/checkpoint-20"
    check_saved_once(checkpoint, expected)
    assert any((checkpoint / "global_step20").iterdir())

    # In bf16 the engine computes with 16-bit copies; what is saved are the fp32 weights that its optimizer keeps
    checkpoint = folder / "bf16/run-2/checkpoint-2"
    saved = check_saved_once(checkpoint, expected)
    assert {value.dtype for value in saved.values()} == {torch.float32}
    assert not all(torch.equal(value, value.bfloat16().float()) for value in saved.values())
    assert json.loads((checkpoint / "config.json").read_text())["dtype"] == "float32"


def test_two_ranks_under_deepspeed_zero_2(layout, tmp_path):
    pytest.importorskip("deepspeed")
    check_zero_2(launch(tmp_path, "cpu_zero2"), layout)


def test_two_ranks_under_fsdp2(layout, tmp_path):
    """Real sharding, which accelerate ignores on CPU ranks unless it is told otherwise."""
    out = launch(tmp_path, "cpu_fsdp2")
    got = load_file(out / "layout/result.safetensors")
    compare(got, layout)
    compare_muon(got, layout)
    check_saved_once(out / "layout/run-20/checkpoint-20", layout)
    assert "engine: FSDP2, 2 ranks" in (tmp_path / "log").read_text()

    for name in ("model", "optimizer"):  # torch returns the betas as a list when it has loaded them: the tensors count
        whole, resumed = (load_file(out / run / f"checkpoint-4/{name}.safetensors") for run in ("whole", "resumed"))
        assert whole.keys() == resumed.keys()
        assert all(torch.equal(value, resumed[key]) for key, value in whole.items()), name


def test_an_engine_that_accelerate_ignores_is_refused(monkeypatch):
    assert checked_engine(torch.nn.Linear(1, 1), 1) == "none"
    for ranks, variable in ((2, "UNUSED"), (1, "ACCELERATE_USE_FSDP"), (1, "ACCELERATE_USE_DEEPSPEED")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "true")
            with pytest.raises(InputError, match="accelerate ignores"):
                checked_engine(torch.nn.Linear(1, 1), ranks)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler: DeepSpeed cannot build its CPU operator")
def test_two_ranks_under_deepspeed_zero_2_with_its_operator(layout, tmp_path):
    """As in a run: the operator is compiled the first time, for a minute or two."""
    pytest.importorskip("deepspeed")
    check_zero_2(launch(tmp_path, "cpu_zero2", "operator"), layout)


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    import ranks_worker

    folder = tmp_path_factory.mktemp("single")
    ranks_worker.main(str(folder))
    return load_file(folder / "rank_0.safetensors")


@pytest.fixture(scope="module")
def ranks(two_ranks):
    return [load_file(two_ranks / f"ranks/rank_{rank}.safetensors") for rank in range(2)]


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


def test_ranks_agree_once_a_step_and_end_after_the_same_one(single, ranks):
    collectives, last_step = zip(*(rank["stopped"].tolist() for rank in ranks), strict=True)
    assert collectives == (1, 1)
    assert last_step == (3, 3)  # asked during the second step
    assert single["stopped"].tolist() == [0, 2]


def test_the_order_of_the_rows_is_one_order(ranks):
    """In each epoch every row once, also in a second `train`, when the ranks' generators differ."""
    rows = torch.stack([rank["rows"] for rank in ranks])  # (rank, train, epoch, row)
    for train in range(2):
        for epoch in range(2):
            assert sorted(rows[:, train, epoch].flatten().tolist()) == list(range(16)), (train, epoch)


def test_ranks_share_the_orthogonalisation_and_update_alike(single, ranks):
    names = [name for name in single if name.startswith("muon/torch")]
    assert len(names) == 10
    for name in names:
        assert torch.equal(ranks[0][name], single[name]), name
        assert torch.equal(ranks[1][name], single[name]), name
    assert single["muon/calls"] == 30  # 5 matrices, 3 steps, 2 precisions
    assert ranks[0]["muon/calls"] + ranks[1]["muon/calls"] == 30
    assert min(ranks[0]["muon/calls"], ranks[1]["muon/calls"]) == 6  # of two equal shapes each has one


def test_one_process_draws_what_it_drew(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, steps=1)
    trainer._tr_loss = torch.zeros(())
    state = torch.random.get_rng_state()
    trainer._begin_training()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_resumed_rank_draws_the_masks_that_follow_its_checkpoint(tmp_path, tokenizer, monkeypatch):
    """Seeding comes first, the generators of the checkpoint after it."""
    monkeypatch.setattr(TrainingArguments, "process_index", 1)
    whole = make(tmp_path / "whole", tokenizer, steps=4, save_strategy="no", eval_strategy="no")
    resumed = make(tmp_path / "cut", tokenizer, steps=4, save_strategy="no", eval_strategy="no")
    for trainer in (whole, resumed):
        trainer._tr_loss, trainer._total_loss_scalar, trainer._globalstep_last_logged = torch.zeros(()), 0.0, 0
    whole._begin_training()
    torch.rand(100)
    save_state(rank_state({}), tmp_path / "rank_1.safetensors")
    expected = torch.rand(8)
    resumed._begin_training()
    resumed._load_rng_state(str(tmp_path))
    assert torch.equal(torch.rand(8), expected)
