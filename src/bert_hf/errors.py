"""How a command ends when it does not end well: one line that says what, where and how to mend it, and an exit code.

2    bad input, a full disk, a folder that cannot be written: `InputError`, or the disk's own complaint
70   a loss or a gradient that is not finite
75   something outside failed (a rank, a worker process, a step that never came); the same command goes on
143  stopped by a signal, everything saved; the same command goes on
"""

import difflib
import errno
import functools
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

BAD_INPUT, NOT_FINITE, UNAVAILABLE, STOPPED = 2, 70, 75, 143


class InputError(Exception):
    """Bad input from outside: a file, a flag, a folder.

    Args:
        what: the fault, in one plain sentence without a full stop.
        remedy: what to do about it.
        where: file, folder or flag; `line` (1-based) and `column` (1-based) narrow it down.
    """

    def __init__(
        self,
        what: str,
        *,
        remedy: str,
        where: str | Path | None = None,
        line: int | None = None,
        column: int | None = None,
    ):
        self.what, self.remedy, self.where, self.line, self.column = what, remedy, where, line, column
        super().__init__(what, remedy, where, line, column)

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.where, self.line, self.column) if part is not None)
        text = f"{place}: {self.what}; {self.remedy}" if place else f"{self.what}; {self.remedy}"
        return " ".join(text.split())  # one line, whatever a file name or a nested message holds

    def __reduce__(self):
        # Exceptions travel between worker processes as (class, args); ours takes keyword arguments.
        make = functools.partial(InputError, remedy=self.remedy, where=self.where, line=self.line, column=self.column)
        return make, (self.what,)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`did you mean 'text'? ` where one of the names is near, else nothing: the beginning of a remedy."""
    lowered = {other.lower(): other for other in names if isinstance(other, str)}
    near = difflib.get_close_matches(name.lower(), lowered, 1)
    return f"did you mean {lowered[near[0]]!r}? " if near else ""


class RunInterrupted(BaseException):
    """A run that ends before its last step. No `Exception`: what catches those must not swallow a signal.

    Args:
        text: why, after which step, and how to go on.
        code: the exit code: `NOT_FINITE`, `UNAVAILABLE` or `STOPPED`.
        speaks: this process prints the line; by default rank 0 does.
    """

    def __init__(self, text: str, code: int, speaks: bool | None = None):
        super().__init__(text)
        self.text, self.code, self.report = text, code, speaks

    def __reduce__(self):
        return RunInterrupted, (self.text, self.code, self.report)


# What a disk or its rights may refuse, wherever something is written.
_REFUSED = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EIO
}  # fmt: skip
_REMEDY = "make room, change its rights, or name another place"


def error_line(error: BaseException) -> str | None:
    """The one line of an error, where there is one; None: a fault of ours."""
    if isinstance(error, InputError | RunInterrupted):
        return " ".join(str(error).split())
    if number := re.search(r"\(os error (\d+)\)", str(error)):  # Rust's: tokenizers, safetensors
        refused = InputError(str(error), where="disk", remedy=_REMEDY)
        return str(refused) if int(number[1]) in _REFUSED else None
    if isinstance(error, OSError):
        refused = InputError(f"{error.strerror}", where=error.filename or "disk", remedy=_REMEDY)
        rights = error.errno in (errno.EACCES, errno.EPERM) and error.filename is None  # of what, nobody knows
        return str(refused) if error.errno in _REFUSED and not rights else None
    if "PytorchStreamWriter failed" in str(error):  # DeepSpeed's files: torch says no more than that
        return "disk: a file of the checkpoint cannot be written; make room, or write elsewhere"
    # Of a DataLoader's worker torch makes text, traceback and all.
    text, name = str(error).rstrip(), f"{InputError.__module__}.{InputError.__name__}: "
    last = text.rpartition("\n")[2]
    return last.removeprefix(name) if text.startswith("Caught InputError in DataLoader") else None


def one_line_errors(main: Callable[..., int]) -> Callable[..., int]:
    """Decorates a recipe's `main`: what a person or the machine did becomes one line on stderr and an exit code.

    With several ranks, rank 0 alone prints, so that the line appears once.
    """

    @functools.wraps(main)
    def guarded(*args, **kwargs) -> int:
        try:
            return main(*args, **kwargs)
        except (Exception, RunInterrupted) as error:
            line = error_line(error)
            if line is None:
                raise
            code, speaks = getattr(error, "code", BAD_INPUT), getattr(error, "speaks", None)
            if speaks or (speaks is None and os.environ.get("RANK", "0") == "0"):
                tell(f"{'stopped' if code == STOPPED else 'error'}: {line}")
            return code

    return guarded


def tell(line: str) -> None:
    """Writes a line to stderr, if somebody still holds its other end."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - else the interpreter complains once more when it ends
