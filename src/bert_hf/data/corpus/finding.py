"""Defines one line of a report: a measurement and, if it is a problem, the remedy."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A measurement in words and, if it is a problem, the remedy."""

    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"! {self.what}: {self.remedy}" if self.remedy else f"  {self.what}"
