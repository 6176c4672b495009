"""User-facing errors: each becomes one line on stderr that names place, problem and hint, and an exit code.

2    bad input, a full disk, a folder that cannot be written: `InputError`, or an `OSError` of the disk
70   a loss or a gradient that is not finite
75   a rank or a worker process died, or no progress was made; the same command resumes the run
143  stopped by a signal after everything was saved; the same command resumes the run
"""

import difflib
import errno
import functools
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path

BAD_INPUT, NOT_FINITE, UNAVAILABLE, STOPPED = 2, 70, 75, 143


@dataclass(eq=False)
class InputError(Exception):
    """Invalid user input: a file, an option or a folder.

    Args:
        what: the problem, in one plain sentence without a full stop; `remedy` follows it, after a semicolon.
        where: file, folder or flag; `line` (1-based) and `column` (1-based) narrow it down.
    """

    what: str
    _: KW_ONLY
    remedy: str
    where: str | Path | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.where, self.line, self.column) if part is not None)
        text = f"{place}: {self.what}; {self.remedy}" if place else f"{self.what}; {self.remedy}"
        return " ".join(text.split())  # one line

    def __reduce__(self) -> tuple:
        # Exceptions travel between worker processes as (class, args); this one takes keyword arguments.
        return functools.partial(InputError, **asdict(self)), ()


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return `did you mean 'text'? `, to begin a remedy with; an empty string where none of the names is similar."""
    by_lower_case = {other.lower(): other for other in names}
    similar = difflib.get_close_matches(name.lower(), by_lower_case, 1)
    return f"did you mean {by_lower_case[similar[0]]!r}? " if similar else ""


def check_known(name: str, names: Collection[str], what: str, where: str) -> None:
    """Raise an `InputError` (`what`, `where`) for a name that is not in `names`; it suggests a similar one, or all."""
    if name not in names:
        raise InputError(what, where=where, remedy=did_you_mean(name, names).strip() or f"one of: {', '.join(names)}")


class RunInterrupted(BaseException):
    """A run that ends before its last step, with an exit code. Not an `Exception`: no `except Exception` may catch it.

    Args:
        any_rank_prints: this process prints the line, whichever rank it is; otherwise the first of each host does.
    """

    def __init__(self, text: str, code: int, any_rank_prints: bool = False):
        super().__init__(text)
        self.code = code
        self.any_rank_prints = any_rank_prints


class ChecksPassed(BaseException):
    """Raised where `--check` found no error: the command ends there, with exit code 0 (see `one_line_errors`)."""


# Errors of a disk or its permissions, wherever a file is written.
_DISK_ERRORS = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EIO
}  # fmt: skip
_DISK_REMEDY = "free some space, change its permissions, or name another place"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or the name of its class where it has no text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def error_line(error: BaseException) -> str | None:
    """Return the line to print for an error of the user or the machine; None for any other error, which is a bug."""
    text = str(error)
    if isinstance(error, InputError | RunInterrupted):
        return " ".join(text.split())

    # Errors of the disk: from Rust (tokenizers, safetensors), from Python, from torch
    if number := re.search(r"\(os error (\d+)\)", text):
        error = OSError(int(number[1]), text)
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        return str(InputError(f"{error.strerror}", where=error.filename or "disk", remedy=_DISK_REMEDY))
    if "PytorchStreamWriter failed" in text:  # the checkpoint files of DeepSpeed; torch gives no reason
        return "disk: a file of the checkpoint cannot be written; free some space, or write elsewhere"

    # An `InputError` of a DataLoader's worker arrives as text that ends with the traceback's last line.
    if text.startswith("Caught InputError in DataLoader"):
        last = text.rstrip().rpartition("\n")[2]
        return last.removeprefix(f"{InputError.__module__}.{InputError.__name__}: ")
    return None


error_prefix = ""  # of the text of an error line: a study puts the name of the cell here that it runs


def one_line_errors(main: Callable[..., int]) -> Callable[..., int]:
    """Decorate a recipe's `main`: an error of the user or the machine becomes one line on stderr and an exit code.

    Of several ranks only the first one of each host prints the line, except for an error with `any_rank_prints`.
    """

    @functools.wraps(main)
    def guarded(*args, **kwargs) -> int:
        try:
            return main(*args, **kwargs)
        except ChecksPassed:
            return 0
        except (Exception, RunInterrupted) as error:
            line = error_line(error)
            if line is None:
                raise

            code = getattr(error, "code", BAD_INPUT)
            first_of_host = os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")) == "0"
            if first_of_host or getattr(error, "any_rank_prints", False):
                kind = "stopped" if code == STOPPED else "error"
                print(f"{kind}: {error_prefix}{line}", file=sys.stderr, flush=True)
            return code

    return guarded
