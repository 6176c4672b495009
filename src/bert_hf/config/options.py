"""Declares options: dataclass fields with a default, a help text and limits. Imports no torch."""

from collections.abc import Iterable
from dataclasses import field
from typing import Any, NamedTuple

from bert_hf.errors import InputError


class Limits(NamedTuple):
    """Constraints of an option, checked by `parse`; see `option`."""

    range: str | None
    only_with: tuple[str, ...]
    not_with: tuple[str, ...]


def option(
    default: Any,
    help: str,
    choices: Iterable | None = None,
    *,
    range: str | None = None,
    only_with: str | tuple[str, ...] = (),
    not_with: str | tuple[str, ...] = (),
) -> Any:
    """Declares an option: a dataclass field with its help text and the limits that `parse` checks.

    Args:
        range: the interval of its numbers: "[0, 1)" includes 0 and excludes 1; "(0, inf)" is every positive number.
        only_with: it has no effect without this option, or without any of these: "dataset_name", or with the value
            that it needs "optim=muon".
        not_with: it has no effect with any of these.
    """
    metadata: dict[str, Any] = {"help": help.replace("%", "%%")}
    if choices:
        metadata["choices"] = choices
    metadata["limits"] = Limits(range, _tuple(only_with), _tuple(not_with))
    return field(default=default, metadata=metadata)


def _tuple(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def check_range(name: str, value, interval: str) -> None:
    """Raises an `InputError` if a number, or one in a list of numbers, is outside an interval; NaN is in none."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    for number in value if isinstance(value, list) else [value]:
        above = low <= number if interval[0] == "[" else low < number
        below = number <= high if interval[-1] == "]" else number < high
        if not (above and below):
            raise InputError(f"{number} is out of range", where=f"--{name}", remedy=f"must be in {interval}")
