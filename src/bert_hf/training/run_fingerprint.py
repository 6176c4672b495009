"""Compares the identities of two runs entry by entry: which settings make them different runs.

An identity is a dict of settings. A value may be a group, itself a dict (`optimizer` → `learning_rate`, …). Runs
recorded before groups had names hold a list in place of such a dict: its values come in the order of today's names.
"""

from enum import Enum
from typing import Any

# Keys that version 0.1.0 did not record; where a record lacks one, it is not compared.
_ADDED = ("precision", "optimizer_name")
_SHOWN = 4  # differing entries that a message lists


def settings(args: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """A group of an identity: those attributes of a run's arguments, as JSON values."""
    values = {name: getattr(args, name) for name in names}
    return {name: str(value) if isinstance(value, Enum) else value for name, value in values.items()}


def differences(recorded: dict, present: dict) -> dict[str, list[str]]:
    """The keys that differ, each with its differing entries as text.

        >>> differences({"seed": 1, "optimizer": [1e-4, 0.9]}, {"seed": 1, "optimizer": {"rate": 1e-3, "beta": 0.9}})
        {'optimizer': ['rate: 0.001, was 0.0001']}

    Args:
        recorded: the identity of the earlier run, as read from JSON.
        present: that of the present run, of JSON values. Keys that it lacks are not compared.
    """
    found = {}
    for key, value in present.items():
        if key in _ADDED and key not in recorded:
            continue
        before = recorded.get(key)
        if not same(before, value):
            found[key] = _entries(key, before, value)
    return found


def same(recorded: Any, present: Any) -> bool:
    """True where a recorded value and a present one (an identity, or an entry of one) mean the same settings.

    Of an old list a missing last value counts as equal: that entry did not exist when the list was written.
    """
    if isinstance(present, dict) and isinstance(recorded, list):
        return len(recorded) <= len(present) and all(map(same, recorded, present.values()))
    if isinstance(present, dict) and isinstance(recorded, dict):
        present = {key: value for key, value in present.items() if key in recorded or key not in _ADDED}
        names = {**recorded, **present}
        return all(same(recorded.get(name), present.get(name)) for name in names)  # None: not set, or not known then
    return recorded == present


def describe(found: dict[str, list[str]]) -> str:
    """`differences` as text: the keys, and in parentheses the first differing entries."""
    entries = [entry for key in found for entry in found[key]]
    shown = "; ".join(entries[:_SHOWN])
    more = len(entries) - _SHOWN
    return f"{', '.join(found)} differ ({shown}{f' and {more} more' if more > 0 else ''})"


def _entries(key: str, before: Any, now: Any) -> list[str]:
    if not isinstance(now, dict):
        return [f"{key}: {now}, was {before}"]

    if isinstance(before, list):
        named = dict(zip(now, before, strict=False))
        # What the list could not record is not compared; a list that is too long is of no known form.
        now = {name: now[name] for name in named}
        before = named
    if not isinstance(before, dict):
        return [f"{key}: {now}, was {before}"]

    names = [name for name in {**before, **now} if not same(before.get(name), now.get(name))]
    return [f"{name}: {now.get(name)}, was {before.get(name)}" for name in names] or [f"{key}: other entries"]
