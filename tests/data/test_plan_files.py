"""Plans that the processes of a machine share: the same examples as without, and each plan is drawn once."""

import multiprocessing
import socket
from pathlib import Path

import numpy as np
import pytest
from tiny import TinyWindows
from torch.utils.data import BatchSampler, DataLoader

from bert_hf.data.examples import dataset
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.data.examples.plan_files import shared_plan_folder
from bert_hf.data.examples.samplers import Phase, RunSampler
from bert_hf.errors import UNAVAILABLE, RunInterrupted

PHASES = (Phase(48, 160), Phase(64, None))
TOTAL = 480


def read(rank: int, ranks: int, workers: int, folder: Path | None, out: Path, step=lambda: None) -> None:
    """Saves the numbers, lengths and labels of the examples of a rank; `step` is called after each batch."""
    examples = PreTrainingExamples(TinyWindows(), PHASES, seed=3)
    examples.plan_folder = folder
    sampler = RunSampler(PHASES, examples.window_length, TOTAL, 3, rank=rank, ranks=ranks, batch_size=4)
    loader = DataLoader(examples, batch_sampler=BatchSampler(sampler, 4, False), num_workers=workers, collate_fn=list)
    rows = []
    for batch in loader:
        rows += batch
        step()
    columns = [
        [*row["number"], len(row["segment_a"]), *row["segment_b"][:3], row["next_sentence_label"]] for row in rows
    ]
    width = max(map(len, columns))
    np.save(out / f"{ranks}-{rank}.npy", np.array([column + [-1] * (width - len(column)) for column in columns]))


def count_plans(monkeypatch, log: Path) -> None:
    plan_epoch = dataset.plan_epoch

    def counted(*args):
        with open(log, "a") as file:
            file.write("plan\n")
        return plan_epoch(*args)

    monkeypatch.setattr(dataset, "plan_epoch", counted)


def test_two_ranks_with_two_workers_each_draw_each_plan_once(tmp_path, monkeypatch):
    read(0, 1, 0, None, tmp_path)
    expected = np.load(tmp_path / "1-0.npy")

    count_plans(monkeypatch, tmp_path / "plans")
    fork = multiprocessing.get_context("fork")
    together = fork.Barrier(2).wait  # as gradients keep ranks together
    ranks = [
        fork.Process(target=read, args=(rank, 2, 2, tmp_path / "shared", tmp_path, together)) for rank in range(2)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
        assert process.exitcode == 0

    windows = len(np.unique(expected[:, :3], axis=0))
    assert windows > 6
    assert len((tmp_path / "plans").read_text().split()) == windows

    dealt = np.stack([np.load(tmp_path / f"2-{rank}.npy").reshape(TOTAL // 8, 4, -1) for rank in range(2)], 1)
    np.testing.assert_array_equal(dealt.reshape(TOTAL, -1), expected)


def test_the_folder_is_that_of_the_machine_and_goes_with_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with shared_plan_folder(tmp_path / "run", True, lambda mine: [("elsewhere", "/there"), mine]) as folder:
        assert folder.parent == tmp_path
        folder.joinpath("left").touch()
        of_first = (socket.gethostname(), str(folder))
        with shared_plan_folder(tmp_path / "run", False, lambda mine: [of_first, mine]) as of_others:
            assert of_others == folder
    assert not list(tmp_path.iterdir())


def test_a_run_that_ends_early_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(RunInterrupted), shared_plan_folder(tmp_path / "run", True, lambda mine: [mine]):
        raise RunInterrupted("after step 3", UNAVAILABLE)
    assert not list(tmp_path.iterdir())
