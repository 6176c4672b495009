"""Counts progress between training steps (reading data, planning, compiling), for the watchdog to see.

There is one counter per process. A trainer puts it into shared memory, so that its data loader's workers add to the
same one. Imports nothing heavy: worker processes import this, too.

    beat()                # something short was done: an example was read
    with busy():          # a long operation that cannot call `beat`: planning, compiling, fetching
        plan_epoch(...)
"""

import contextlib
import ctypes
import multiprocessing
import threading
from collections.abc import Callable, Iterator

BUSY_TIMEOUT = 1800.0  # seconds that a `busy` section may take without a sign of life, by default
_EVERY = 0.25  # seconds between two beats of a `busy` section

_beats = ctypes.c_int64()
_longest = BUSY_TIMEOUT


def beat() -> None:
    """Counts one piece of progress. Between processes some may be lost: only that the count changes matters."""
    _beats.value += 1


def beats() -> int:
    """The count of this process and of its data loader's workers."""
    return _beats.value


@contextlib.contextmanager
def busy(sign_of_life: Callable[[], object] | None = None) -> Iterator[None]:
    """Inside, a thread counts progress on behalf of a long operation.

    It stops counting after half an hour (36 × `--hang_timeout`), so that an operation that never ends is found.

    Args:
        sign_of_life: called four times a second; whenever it returns another value the half hour is restarted.
    """
    over = threading.Event()
    thread = threading.Thread(target=_keep_beating, args=(over, sign_of_life), name="busy", daemon=True)

    beat()
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        beat()


def _keep_beating(over: threading.Event, sign_of_life: Callable[[], object] | None) -> None:
    # Rounds are counted instead of clock time: time in which the process was suspended does not count.
    waited = 0.0
    last = None
    while not over.wait(_EVERY):
        if sign_of_life is not None and (now := sign_of_life()) != last:
            waited = 0.0
            last = now
        if waited > _longest:
            return
        waited += _EVERY
        beat()


# ---- processes


def share(longest: float = BUSY_TIMEOUT) -> tuple:
    """Moves the counter into shared memory and sets how long a `busy` section may take, in seconds.

    Returns:
        What `join` takes in a worker process.
    """
    shared = multiprocessing.RawValue(ctypes.c_int64, _beats.value)
    join(shared, longest)
    return shared, longest


def join(shared: ctypes.c_int64, longest: float) -> None:
    """From now on this process counts in the trainer's shared memory."""
    global _beats, _longest
    _beats = shared
    _longest = longest


def start_worker(shared: tuple, then: Callable[[int], None] | None, worker: int) -> None:
    """With its first arguments bound, a `worker_init_fn` of a `DataLoader`: lets the worker count with its trainer.

    Args:
        shared: what `share` returned.
        then: the loader's own `worker_init_fn`, if it has one, which is called, too.
    """
    join(*shared)
    if then is not None:
        then(worker)


# ---- the compiler


@contextlib.contextmanager
def compiling_counts() -> Iterator[None]:
    """Inside, each compilation of `torch.compile`, recompilations included, is a `busy` section."""
    from torch._dynamo.callback import callback_handler as compiler

    sections = contextlib.ExitStack()

    def begin(_) -> None:
        sections.enter_context(busy())

    def end(_) -> None:
        sections.close()

    compiler.register_start_callback(begin)
    compiler.register_end_callback(end)

    try:
        yield
    finally:
        compiler.remove_start_callback(begin)
        compiler.remove_end_callback(end)
        sections.close()
