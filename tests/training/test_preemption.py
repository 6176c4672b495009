"""A second signal ends a command that hangs while it ends."""

import os
import signal
import time

from helpers.child_processes import child, code

from bert_hf.training import preemption


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
