"""A long operation is not taken for a hang, a hang is found, and patience grows where it was too short."""

import functools
import json
import os
import signal
import sys
import threading
import time

import pytest
import torch
from helpers.child_processes import child, code
from helpers.trainer_runs import make
from tiny import TinyStore, TinyWindows
from torch.utils.data import DataLoader, Dataset
from transformers import TrainerCallback

from bert_hf import progress
from bert_hf.config.arguments import PreTrainingArguments
from bert_hf.config.value_ranges import check_ranges
from bert_hf.data.corpus import store as corpus_store
from bert_hf.data.corpus.remote_shards import RemoteShards
from bert_hf.data.examples import collator, dataset
from bert_hf.data.examples.dataset import PreTrainingExamples
from bert_hf.data.examples.samplers import Phase, RunSampler
from bert_hf.errors import UNAVAILABLE, InputError
from bert_hf.training import output_folder, preemption
from bert_hf.training.checkpoints import checkpoint_files
from bert_hf.training.watchdog import HANG_RECORD, STALL_TIMEOUT, Hangs, Watchdog

TIMEOUT = 0.6  # seconds: the stall timeout of the watchdogs that are tested without a run
PATIENCE, PLANNING = 1.5, 3.5  # seconds, of the runs: planning takes longer than the patience


@pytest.fixture(autouse=True)
def counter_of_its_own():
    """Each test has a progress counter that no other test uses."""
    before = progress._beats, progress._longest
    yield
    progress.join(*before)


def watched(folder, live, *, rank=0, world_size=1, longest=20.0) -> int:
    """Starts a process that makes three steps of 20 ms under a watchdog, and then does `live(watchdog)`."""

    def act():
        sys.stderr = open(folder / f"said-{rank}", "w")  # noqa: SIM115 - its process ends by os._exit
        progress.share(longest)
        watchdog = Watchdog(rank, {rank: os.getpid()}, folder, TIMEOUT, world_size)
        watchdog.interval, watchdog._report_delay = 0.05, 0.0
        with preemption.handle_signals(), watchdog:
            for step in range(3):
                time.sleep(0.02)
                watchdog.step(step + 1)
            live(watchdog)

    return child(act)


def long_operation(_) -> None:
    with progress.busy():
        time.sleep(2.5)


def test_a_long_operation_counts_as_progress(tmp_path):
    assert code(watched(tmp_path, long_operation)) == 0


def test_a_long_operation_that_does_not_end_is_found(tmp_path):
    def live(_):
        with progress.busy():
            time.sleep(30)

    begun = time.monotonic()
    assert code(watched(tmp_path, live, longest=1.0)) == UNAVAILABLE
    assert 1.5 < time.monotonic() - begun < 20


def test_a_hang_after_a_long_operation_is_found(tmp_path):
    def live(watchdog):
        long_operation(watchdog)
        time.sleep(30)

    assert code(watched(tmp_path, live)) == UNAVAILABLE
    assert "error: no progress for 1 s after step 3" in (tmp_path / "said-0").read_text()


def test_what_shows_signs_of_life_may_take_any_time(monkeypatch):
    monkeypatch.setattr(progress, "_longest", 0.5)
    monkeypatch.setattr(progress, "_EVERY", 0.05)
    grown: list[int] = []
    counts = []
    for sign_of_life in (lambda: len(grown), lambda: 0, None):
        with progress.busy(sign_of_life):
            for _ in range(12):
                time.sleep(0.1)
                grown.append(1)
            before = progress.beats()
            time.sleep(0.3)
            counts.append(progress.beats() - before)
    assert counts[0] >= 2
    assert counts[1:] == [0, 0]


def test_every_example_that_is_read_counts(store):
    examples = PreTrainingExamples(_one_window(store), (Phase(32, None),))
    before = progress.beats()
    for number in range(5):
        examples[number]
    assert progress.beats() >= before + 5


def _one_window(store):
    class One:
        def windows(self, rng=None):
            return [0]

        def window(self, part, following=()):
            return store

    return One()


# ---- loaders and the compiler


class Slow(Dataset):
    """Rows of which the fourth takes long."""

    def __len__(self):
        return 8

    def __getitem__(self, number):
        if number == 3:
            with progress.busy():
                time.sleep(2.5)
        return number


def test_a_loader_s_worker_counts_where_its_trainer_looks():
    shared = progress.share()
    seen = []
    start = functools.partial(progress.start_worker, shared, seen.append)
    loader = DataLoader(Slow(), num_workers=1, worker_init_fn=start)
    counts, over = [], threading.Event()

    def look():
        while not over.wait(0.4):
            counts.append(progress.beats())

    looking = threading.Thread(target=look)
    looking.start()
    assert [int(row) for row in loader] == list(range(8))
    over.set()
    looking.join()
    assert len(set(counts)) >= 4  # all along the row that takes long
    progress.start_worker(shared, seen.append, 5)
    assert seen == [5]  # the loader's own function is called, too


def test_compiling_counts():
    """The first time, and again for another shape."""
    beats = []

    def backend(graph, inputs):
        before = progress.beats()
        time.sleep(1.2)
        beats.append(progress.beats() - before)
        return graph.forward

    compiled = torch.compile(lambda x: x * 2, backend=backend, dynamic=False)
    counted = []
    with progress.compiling_counts():
        for size in (3, 3, 4):
            before = progress.beats()
            compiled(torch.ones(size))
            counted.append(progress.beats() > before)
    assert counted == [True, False, True]
    assert min(beats) >= 2  # while it compiles
    before = progress.beats()
    compiled(torch.ones(5))
    assert progress.beats() == before  # nothing is left behind
    torch._dynamo.reset()


# ---- ranks


def test_who_waits_for_a_rank_that_plans_waits(tmp_path):
    """Rank 0 is in a collective until rank 1 has planned: it sees that rank 1 is at work."""

    def wait(_):
        while not (tmp_path / "planned").exists():
            time.sleep(0.02)

    def plan(watchdog):
        long_operation(watchdog)
        (tmp_path / "planned").touch()

    running = [watched(tmp_path, wait, world_size=2), watched(tmp_path, plan, rank=1, world_size=2)]
    assert [code(pid) for pid in running] == [0, 0]
    assert not list(tmp_path.glob(".progress-rank*"))


def test_ranks_that_wait_for_each_other_are_found(tmp_path):
    running = [watched(tmp_path, lambda _: time.sleep(30), rank=rank, world_size=2) for rank in range(2)]
    assert UNAVAILABLE in [code(pid) for pid in running]


def test_what_ranks_wrote_for_each_other_is_swept(tmp_path):
    (tmp_path / ".progress-rank12").write_text("3")
    (tmp_path / f".{HANG_RECORD}.77.tmp").write_text("{")
    assert not output_folder.holds_something(tmp_path)
    output_folder._remove_temporary_files(tmp_path)
    assert list(tmp_path.iterdir()) == []


# ---- runs: a window that takes longer to plan than the patience


class TwoWindows(TinyWindows):
    """The second one begins between steps 10 and 20 of the runs here."""

    def __init__(self):
        self.stores = [TinyStore(80, seed) for seed in range(2)]


@pytest.fixture
def exact_patience(monkeypatch):
    """The patience of the runs, however slow the steps of a busy machine are."""
    monkeypatch.setattr(Watchdog, "steps", 0)
    monkeypatch.setattr(Watchdog, "interval", 0.1)


def slow_run(folder, tokenizer, **options):
    """Twenty-four steps through two windows, of which the second one takes `PLANNING` seconds to plan."""
    plan_epoch = dataset.plan_epoch

    def slow(*arguments):
        if slow.planned:  # but the first one
            time.sleep(PLANNING)
        slow.planned += 1
        return plan_epoch(*arguments)

    slow.planned = 0
    dataset.plan_epoch = slow
    return windowed_run(folder, tokenizer, **options)


def windowed_run(folder, tokenizer, **options):
    defaults = {"hang_timeout": PATIENCE, "steps": 24, "save_steps": 4, "eval_strategy": "no", "phases": False}
    trainer = make(folder, tokenizer, **{**defaults, **options})
    trainer.train_dataset = PreTrainingExamples(TwoWindows(), (Phase(32, None),), seed=1)
    return trainer


def process(folder, made, at=None) -> int:
    """Exit code of a process that trains, from the newest checkpoint on; `at`: what happens at which step."""

    def act():
        sys.stderr = open(folder / "said", "w")  # noqa: SIM115 - its process ends by os._exit
        sys.stdout = open(folder / "printed", "w")  # noqa: SIM115
        try:
            trainer = made()
            if at is not None:
                trainer.add_callback(at)
            newest = checkpoint_files.newest_verified(folder)
            with preemption.handle_signals():
                trainer.train(resume_from_checkpoint=str(newest) if newest else None)
        finally:
            sys.stderr.flush()
            sys.stdout.flush()

    folder.mkdir(exist_ok=True)
    return code(child(act))


class At(TrainerCallback):
    """Does something when a step begins."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.action()


def weights(folder) -> bytes:
    return (folder / "checkpoint-24/model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def expected(tmp_path_factory, tokenizer):
    """The weights of an uninterrupted run that plans quickly."""
    whole = tmp_path_factory.mktemp("whole")
    windowed_run(whole, tokenizer, hang_timeout=50).train()
    return weights(whole)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_window_that_takes_long_to_plan_trains_resumes_and_ends(
    tmp_path, tokenizer, exact_patience, expected, workers
):
    """Killed while it plans, and after it; the same weights as without."""
    slow = tmp_path / "slow"
    options = {"dataloader_num_workers": workers}

    def kill_soon():
        killer = threading.Timer(PLANNING / 2, os.kill, (os.getpid(), signal.SIGKILL))
        killer.daemon = True
        killer.start()

    length = windowed_run(tmp_path / "x", tokenizer).train_dataset.window_length(0, 0, 0)
    boundary = length // 16  # the step in which the second window begins
    assert 6 < boundary < 18
    assert process(slow, lambda: slow_run(slow, tokenizer, **options), At(boundary - 1, kill_soon)) == -signal.SIGKILL
    assert not (slow / "checkpoint-24").exists()
    assert process(slow, lambda: slow_run(slow, tokenizer, **options)) == 0, (slow / "said").read_text()
    assert weights(slow) == expected
    assert not (slow / HANG_RECORD).exists()


def test_without_the_count_such_a_run_is_ended(tmp_path, tokenizer, exact_patience, monkeypatch):
    """The test above can fail: this is what it looked like."""
    monkeypatch.setattr(progress, "_keep_beating", lambda *_: None)
    assert process(tmp_path, lambda: slow_run(tmp_path, tokenizer)) == UNAVAILABLE
    assert "error: no progress for" in (tmp_path / "said").read_text()


def test_a_hang_in_a_loader_s_worker_is_found(tmp_path, tokenizer, exact_patience):
    """And not excused by what it may do for long."""
    collate = collator.DataCollatorForPreTraining.__call__

    def hang(self, features):
        if features[0]["number"].window:
            time.sleep(60)
        return collate(self, features)

    def made():
        collator.DataCollatorForPreTraining.__call__ = hang
        return windowed_run(tmp_path, tokenizer, dataloader_num_workers=1)

    assert process(tmp_path, made) == UNAVAILABLE


# ---- patience


def test_patience_doubles_with_the_second_hang_at_one_step(tmp_path, tokenizer, exact_patience):
    """An operation that is not counted takes 1.6 times the patience: the run is ended twice, then it gets through."""
    late = At(10, lambda: time.sleep(1.6 * PATIENCE))
    ends = [process(tmp_path, lambda: windowed_run(tmp_path, tokenizer), late) for _ in range(2)]
    assert ends == [UNAVAILABLE, UNAVAILABLE]
    assert json.loads((tmp_path / HANG_RECORD).read_text()) == {"step": 10, "times": 2, "factor": 2}
    assert (tmp_path / "said").read_text().endswith("from the newest checkpoint and waits 2 times as long\n")
    assert process(tmp_path, lambda: windowed_run(tmp_path, tokenizer), late) == 0, (tmp_path / "said").read_text()
    assert "hung after step 10; --hang_timeout is 3 s, not 1.5 s" in (tmp_path / "printed").read_text()
    assert not (tmp_path / HANG_RECORD).exists()


def test_the_record_of_hangs(tmp_path):
    hangs = Hangs.read(tmp_path)
    factors = []
    for step in (7, 7, 7, 20, 30, 30):
        hangs = hangs.after(step)
        hangs.write(tmp_path)
        assert Hangs.read(tmp_path) == hangs
        factors.append(hangs.factor)
    assert factors == [1, 2, 4, 4, 4, 8]  # what was learnt is kept
    for _ in range(20):
        hangs = hangs.after(30)
    assert hangs.factor == 64
    watchdog = Watchdog(0, {0: os.getpid()}, tmp_path, 50.0)
    watchdog._durations.extend([10.0, 10.0])
    assert watchdog.patience() == 8 * 18 * 10
    for garbage in ("", "[]", '{"step": 1}', '{"step": "x", "times": 1, "factor": 2}'):
        (tmp_path / HANG_RECORD).write_text(garbage)
        assert Hangs.read(tmp_path) == Hangs()


def test_the_option(tmp_path):
    args = PreTrainingArguments(output_dir=str(tmp_path), use_cpu=True, bf16=False)
    assert args.hang_timeout == STALL_TIMEOUT == 50
    args.hang_timeout = 0.5
    with pytest.raises(InputError, match=r"--hang_timeout: 0\.5 is out of range; give a number of at least 1"):
        check_ranges(args)


# ---- planning


def test_a_window_is_planned_once(monkeypatch):
    """The sampler asks for the next window's length while examples of this one are still to be read."""
    planned = []
    plan_epoch = dataset.plan_epoch
    monkeypatch.setattr(dataset, "plan_epoch", lambda *arguments: planned.append(1) or plan_epoch(*arguments))
    examples = PreTrainingExamples(TinyWindows(2), (Phase(32, None),), seed=1)
    lengths = [examples.window_length(0, 0, window) for window in range(2)]
    assert lengths[0] % 8  # so that a batch of eight has examples of both windows
    planned.clear()
    examples.lengths.clear()
    examples._plans.clear()
    sampler = iter(RunSampler(examples.phases, examples.window_length, sum(lengths), 1))
    while batch := [number for _, number in zip(range(8), sampler, strict=False)]:
        for number in batch:
            examples[number]
    assert len(planned) == 2


def test_a_shard_that_is_fetched_slowly_counts(tmp_path, monkeypatch):
    """As long as bytes come it may take any time; here also in another process, whose lock is waited for."""
    from helpers.token_stores import write

    near = tmp_path / "near"
    near.mkdir()
    corpus = write(near, shards=2)
    monkeypatch.setattr(corpus_store, "WINDOW_TOKENS", 1)
    monkeypatch.setattr(progress, "_EVERY", 0.05)
    monkeypatch.setattr(progress, "_longest", 0.4)
    storage = RemoteShards(f"file://{near}", tmp_path / "cache")

    def download(name, path, entry=None):
        data = (near / name).read_bytes()
        temporary = path.with_name(f".{path.name}.tmp")
        for part in range(10):
            temporary.write_bytes(data[: len(data) * (part + 1) // 10])
            time.sleep(0.15)
            counts.append(progress.beats())
        temporary.rename(path)

    counts: list[int] = []
    monkeypatch.setattr(storage, "_download", download)
    with storage.files(corpus.manifest["shards"][:1], []) as files:
        assert files[0].read_bytes() == (near / "data-00000.arrow").read_bytes()
    assert len(set(counts)) >= 3  # on a busy machine few of them
