"""One line of a report: what was measured and, where something should be done about it, what."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What was measured and, where something should be done about it, what."""

    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"! {self.what}: {self.remedy}" if self.remedy else f"  {self.what}"
