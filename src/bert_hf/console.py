"""Console output: the logger, shortened lists, tables as lines, and the lines of a report.

The logger writes plain lines to standard output, information only on rank 0 and warnings on every rank.
`transformers.utils.logging.get_logger("bert_hf")` is the same logger; `setLevel(logging.WARNING)` makes it quiet.
"""

import functools
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tqdm.auto import tqdm

T = TypeVar("T")


class _StandardOutput(logging.StreamHandler):
    """Write to whatever `sys.stdout` is when the line is written, above any progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stdout
        with tqdm.external_write_mode():
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop a line that cannot be written, in place of logging's traceback; raise other errors."""
        if not isinstance(sys.exc_info()[1], OSError):
            raise


# DeepSpeed's notices, such as that it found no accelerator: the run's own banner names the device
logging.getLogger("DeepSpeed").addFilter(lambda record: record.levelno >= logging.ERROR)

logger = logging.getLogger("bert_hf")
if not logger.handlers:
    logger.addHandler(_StandardOutput())
    # Evaluated per line, because some launchers set RANK after import
    logger.addFilter(lambda record: record.levelno >= logging.WARNING or os.environ.get("RANK", "0") == "0")
    logger.setLevel(logging.INFO)
log_once = functools.cache(logger.info)  # a command may read the same file twice, to check it and to run


def progress(items: Iterable[T], description: str, unit: str, total: int | None = None) -> Iterable[T]:
    """Return the items, with a bar once they have taken five seconds; only on a terminal, and on rank 0."""
    hidden = not sys.stderr.isatty() or os.environ.get("RANK", "0") != "0"
    return tqdm(items, desc=description, unit=f" {unit}", total=total, delay=5, leave=False, disable=hidden)


def shorten_list(names: Sequence[str]) -> str:
    """Return the first three names and how many more there are, as text: `a, b, c and 2 more`."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


def format_table(rows: list[list[str]]) -> list[str]:
    """Return one line per row, with the first column aligned to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        aligned = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *aligned]).rstrip())
    return lines


@dataclass(frozen=True)
class Finding:
    """One line of a report: a measurement in words and, if it is a problem, the remedy."""

    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"! {self.what}: {self.remedy}" if self.remedy else f"  {self.what}"
