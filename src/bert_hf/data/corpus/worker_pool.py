"""Ordered parallel map over worker processes with bounded look-ahead."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import starmap
from typing import Any

from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import TerminatedWorkerError

from bert_hf.errors import InputError


def map_ahead(function: Callable, calls: Iterable[tuple], num_proc: int) -> Iterator[Any]:
    """Yield `function(*arguments)` for each tuple of arguments, in order, from processes that work a little ahead.

    (joblib's generator computes on whether or not its results are taken: a slow disk would fill the memory.)
    """
    if num_proc == 1:
        yield from starmap(function, calls)
        return

    # Idle processes end after a minute; in each of them the tokenizer uses one thread, and the logger is silent
    pool = get_reusable_executor(num_proc, timeout=60, env={"TOKENIZERS_PARALLELISM": "false", "RANK": "1"})
    pending = deque()
    try:
        for arguments in calls:
            pending.append(pool.submit(function, *arguments))
            if len(pending) >= 4 * num_proc:  # so that no process waits for the caller
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BaseException as error:  # GeneratorExit, too: the caller takes no more results
        pool.shutdown(kill_workers=True)
        if not isinstance(error, TerminatedWorkerError):
            raise
        remedy = "use fewer processes; the same command resumes"
        raise InputError("a worker process was killed (out of memory?)", where="--num_proc", remedy=remedy) from None
