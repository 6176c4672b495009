"""What a person did wrong, where, and how to mend it: the one exception the whole project raises for bad input."""

import difflib
import errno
import functools
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path


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


# What a disk or its rights may refuse, wherever something is written.
_REFUSED = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}


def _line(error: Exception) -> str | None:
    """The one line, where there is one; None: a fault of ours."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError):
        place = InputError(f"{error.strerror}", where=error.filename or "disk", remedy="make room, or write elsewhere")
        return str(place) if error.errno in _REFUSED else None
    # Of a DataLoader's worker torch makes text, traceback and all.
    text, name = str(error).rstrip(), f"{InputError.__module__}.{InputError.__name__}: "
    last = text.rpartition("\n")[2]
    return last.removeprefix(name) if text.startswith("Caught InputError in DataLoader") else None


def one_line_errors(main: Callable[..., int]) -> Callable[..., int]:
    """Decorates a recipe's `main`: an `InputError` becomes one line `error: …` on stderr and exit code 2.

    With several ranks, rank 0 alone prints, so that the line appears once.
    """

    @functools.wraps(main)
    def guarded(*args, **kwargs) -> int:
        try:
            return main(*args, **kwargs)
        except (InputError, RuntimeError, OSError) as error:
            line = _line(error)
            if line is None:
                raise
            if int(os.environ.get("RANK", "0")) == 0:
                print(f"error: {line}", file=sys.stderr, flush=True)
            return 2

    return guarded
