"""The watchdog ends a process that makes no progress or whose rank is gone, and no other; signals end a command."""

import contextlib
import os
import signal
import sys
import time

import pytest
from helpers.child_processes import child, code

from bert_hf.errors import UNAVAILABLE
from bert_hf.training import preemption
from bert_hf.training.watchdog import STALL_TIMEOUT, Watchdog


def exit_code(folder, live, *, ranks=None, rank=0, slow=False, command=True):
    """Of a process that makes three steps of 20 ms under a watchdog, and then calls `live(watchdog)`."""

    def run():
        sys.stderr = open(folder / "said", "w")  # noqa: SIM115 - its process ends by os._exit
        watchdog = Watchdog(rank, {rank: os.getpid(), **(ranks or {})}, folder, stall_timeout=0.6)
        watchdog.interval, watchdog.grace = 0.05, 0.3
        recipe = preemption.handle_signals() if command else contextlib.nullcontext()
        with recipe, watchdog, watchdog.allow_slow_operation() if slow else contextlib.nullcontext():
            for step in range(3):
                time.sleep(0.02)
                watchdog.step(step + 1)
            live(watchdog)

    return code(child(run))


def test_a_process_without_progress_is_ended(tmp_path):
    begun = time.monotonic()
    assert exit_code(tmp_path, lambda _: time.sleep(20)) == UNAVAILABLE
    assert time.monotonic() - begun < 10
    said = (tmp_path / "said").read_text()
    assert said.startswith("error: no progress for 1 s after step 3 (stacks: ")
    assert said.count("\n") == 1
    assert "test_a_process_without_progress_is_ended" in (tmp_path / "stacks-rank0.txt").read_text()


def test_a_foreign_program_is_only_warned(tmp_path):
    def live(watchdog):
        time.sleep(2)

    assert exit_code(tmp_path, live, command=False) == 0
    assert (tmp_path / "said").read_text() == "warning: no progress for 1 s after step 3\n"


@pytest.mark.parametrize("reported_by", ["step", "tick"])
def test_a_process_with_progress_is_left_alone(tmp_path, reported_by):
    def live(watchdog):
        for number in range(15):
            time.sleep(0.1)
            watchdog.tick() if reported_by == "tick" else watchdog.step(number + 4)

    assert exit_code(tmp_path, live) == 0


def test_a_save_may_take_long(tmp_path):
    assert exit_code(tmp_path, lambda _: time.sleep(1.5), slow=True) == 0


def test_before_the_first_step_it_waits(tmp_path):
    watchdog = Watchdog(0, {0: os.getpid()}, tmp_path)
    assert watchdog.patience() == watchdog.slow_operation_timeout
    watchdog.step(1)
    assert watchdog.patience() == watchdog.slow_operation_timeout  # a duration needs the ends of two steps


def test_patience_grows_with_the_steps(tmp_path):
    watchdog = Watchdog(0, {0: os.getpid()}, tmp_path)
    watchdog._durations.extend([10.0, 10.0, 400.0])
    assert watchdog.patience() == 180.0
    assert STALL_TIMEOUT + 10 <= 60  # seconds left for reporting and ending


@pytest.mark.parametrize("slow", [False, True])
def test_a_stopped_rank_is_named_and_killed(tmp_path, slow):
    """Also during a save or an evaluation."""
    other = child(lambda: time.sleep(30))
    os.kill(other, signal.SIGSTOP)
    assert exit_code(tmp_path, lambda _: time.sleep(20), ranks={1: other}, slow=slow) == UNAVAILABLE
    assert code(other) == -signal.SIGKILL
    assert "error: rank 1 is stopped, no progress" in (tmp_path / "said").read_text()


def test_a_dead_rank_is_noticed_though_others_make_progress(tmp_path):
    other = child(lambda: None)
    time.sleep(0.2)  # now it is a zombie, as a launcher's dead child is

    def live(watchdog):
        for _ in range(100):
            time.sleep(0.1)
            watchdog.tick()

    assert exit_code(tmp_path, live, ranks={1: other}) == UNAVAILABLE
    code(other)
    assert "error: rank 1 died after step 3" in (tmp_path / "said").read_text()


def test_a_process_that_was_suspended_and_resumed_is_left_alone(tmp_path):
    def run():
        watchdog = Watchdog(0, {0: os.getpid()}, tmp_path, stall_timeout=0.6)
        watchdog.interval = 0.05
        with watchdog:
            for number in range(20):
                time.sleep(0.1)
                watchdog.step(number)

    pid = child(run)
    time.sleep(0.5)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(pid, signal.SIGCONT)
    assert code(pid) == 0


def test_a_second_signal_ends_a_command_that_hangs_while_ending():
    def run():
        with preemption.handle_signals():
            try:
                time.sleep(20)
            finally:
                time.sleep(20)  # a clean-up that hangs

    pid = child(run)
    for _ in range(2):
        time.sleep(0.3)
        os.kill(pid, signal.SIGTERM)
    assert code(pid) == 143


def test_seconds_running():
    assert 0 < preemption.seconds_running() < 3600
