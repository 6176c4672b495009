"""A watched process ends by itself when nothing moves, when a rank is gone, and only then."""

import contextlib
import os
import signal
import sys
import time

import pytest

from bert_hf.errors import UNAVAILABLE
from bert_hf.training import preemption
from bert_hf.training.watchdog import Watchdog


def child(action) -> int:
    """A process that runs `action` and ends with 0."""
    pid = os.fork()
    if pid == 0:
        code = 99
        with contextlib.suppress(BaseException):
            action()
            code = 0
        os._exit(code)
    return pid


def code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def watched(folder, live, *, ranks=None, rank=0, unhurried=False, command=True):
    """Exit code of a process that makes three steps of 20 ms under a watchdog, and then does `live(dog)`."""

    def run():
        sys.stderr = open(folder / "said", "w")  # noqa: SIM115 - its process ends by os._exit
        dog = Watchdog(rank, {rank: os.getpid(), **(ranks or {})}, folder, quiet=0.6)
        dog.interval, dog.grace = 0.05, 0.3
        recipe = preemption.handle_signals() if command else contextlib.nullcontext()
        with recipe, dog, dog.unhurried() if unhurried else contextlib.nullcontext():
            for step in range(3):
                time.sleep(0.02)
                dog.step(step + 1)
            live(dog)

    return code(child(run))


def test_what_does_not_move_is_given_up(tmp_path):
    begun = time.monotonic()
    assert watched(tmp_path, lambda dog: time.sleep(20)) == UNAVAILABLE
    assert time.monotonic() - begun < 10
    said = (tmp_path / "said").read_text()
    assert said.startswith("error: nothing moved for 1 s after step 3 (stacks: ")
    assert said.count("\n") == 1
    assert "test_what_does_not_move_is_given_up" in (tmp_path / "stacks-rank0.txt").read_text()


def test_a_program_of_somebody_else_s_is_only_told(tmp_path):
    def live(dog):
        time.sleep(2)

    assert watched(tmp_path, live, command=False) == 0
    assert (tmp_path / "said").read_text() == "warning: nothing moved for 1 s after step 3\n"


@pytest.mark.parametrize("moves", ["step", "tick"])
def test_what_moves_is_left_alone(tmp_path, moves):
    def live(dog):
        for number in range(15):
            time.sleep(0.1)
            dog.tick() if moves == "tick" else dog.step(number + 4)

    assert watched(tmp_path, live) == 0


def test_a_save_may_take_its_time(tmp_path):
    assert watched(tmp_path, lambda dog: time.sleep(1.5), unhurried=True) == 0


def test_before_the_first_step_it_waits():
    dog = Watchdog(0, {0: os.getpid()}, None)
    assert dog.patience() == dog.unhurried_quiet
    dog.step(1)
    assert dog.patience() == dog.unhurried_quiet  # one end is no duration


def test_patience_grows_with_the_steps():
    dog = Watchdog(0, {0: os.getpid()}, None)
    dog._durations.extend([10.0, 10.0, 400.0])
    assert dog.patience() == 180.0
    assert Watchdog(0, {}, None).quiet + 10 <= 60  # room for the sentence and the end


@pytest.mark.parametrize("unhurried", [False, True])
def test_a_stopped_rank_is_named_and_killed(tmp_path, unhurried):
    """Also while a save or an evaluation may take its time."""
    other = child(lambda: time.sleep(30))
    os.kill(other, signal.SIGSTOP)
    assert watched(tmp_path, lambda dog: time.sleep(20), ranks={1: other}, unhurried=unhurried) == UNAVAILABLE
    assert code(other) == -signal.SIGKILL
    assert "error: rank 1 is stopped, and nothing moved" in (tmp_path / "said").read_text()


def test_a_dead_rank_is_noticed_though_others_move(tmp_path):
    other = child(lambda: None)
    time.sleep(0.2)  # now it waits to be fetched, as a launcher's dead child does

    def live(dog):
        for _ in range(100):
            time.sleep(0.1)
            dog.tick()

    assert watched(tmp_path, live, ranks={1: other}) == UNAVAILABLE
    code(other)
    assert "error: rank 1 died after step 3" in (tmp_path / "said").read_text()


def test_a_process_that_was_stopped_and_goes_on_is_left_alone(tmp_path):
    def run():
        dog = Watchdog(0, {0: os.getpid()}, tmp_path, quiet=0.6)
        dog.interval = 0.05
        with dog:
            for number in range(20):
                time.sleep(0.1)
                dog.step(number)

    pid = child(run)
    time.sleep(0.5)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(pid, signal.SIGCONT)
    assert code(pid) == 0


def test_a_command_that_hangs_in_its_end_goes_at_the_second_signal():
    def run():
        with preemption.handle_signals():
            try:
                time.sleep(20)
            finally:
                time.sleep(20)  # what ends badly

    pid = child(run)
    for _ in range(2):
        time.sleep(0.3)
        os.kill(pid, signal.SIGTERM)
    assert code(pid) == 143


def test_seconds_running():
    assert 0 < preemption.seconds_running() < 3600
