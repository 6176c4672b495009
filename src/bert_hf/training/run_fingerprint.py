"""Compares the identities of two runs entry by entry: which settings make them different runs.

An identity is a dict of settings. A value may be a group, itself a dict (`optimizer` → `learning_rate`, …). Records of
version 0.1.0 hold a list instead of such a dict: its values have the order of today's names.
"""

import os
from enum import Enum
from typing import Any

from bert_hf.data.corpus.checksums import file_checksum, text_checksum
from bert_hf.models.loading import find_checkpoint, weight_files

# Keys that earlier versions did not record; where a record lacks one, it is not compared.
_ADDED = ("initializer", "precision", "optimizer_name", "fine_tuning", "kept", "vocabulary", "threshold", "n_best")
_ADDED += ("evaluation", "weights")
_PATHS = ("checkpoint", "_name_or_path")  # may be spelled differently: runs/mine, ./runs/mine/
_EVALUATION = ("eval_strategy", "eval_steps", "eval_delay", "eval_on_start")
_SHOWN = 4  # differing entries that a message lists


def weights_checksum(checkpoint: str) -> str:
    """Of the weights that a run starts from: it distinguishes two checkpoints of one folder or Hub id."""
    files = weight_files(find_checkpoint(checkpoint, weights=False))
    return text_checksum(" ".join(map(file_checksum, files)))[:16]


def settings(args: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """A group of an identity: the named attributes of a run's arguments, as JSON values."""
    values = {name: getattr(args, name) for name in names}
    return {name: str(value) if isinstance(value, Enum) else value for name, value in values.items()}


def kept_weights(args: Any, ends_early: bool = False) -> dict[str, Any]:
    """Entries on the weights that a run ends with and, where evaluations decide that, on when it is evaluated.

    Args:
        ends_early: evaluations may end the run.
    """
    kept = args.metric_for_best_model if args.load_best_model_at_end else "the last weights"
    if not args.load_best_model_at_end and not ends_early:
        return {"kept": kept}

    evaluation = settings(args, _EVALUATION)
    if args.eval_strategy != "steps":  # the number of steps has no effect
        evaluation["eval_steps"] = None
    return {"kept": kept, "evaluation": evaluation}


# Values that only earlier versions recorded. An unfinished run that has one cannot be resumed, and its metrics cannot
# be compared with those of a run today; a finished run still counts as finished.
RETIRED_VALUES = {"order": "group_by_length"}  # batches sorted by length, 50 at a time


def retired_keys(recorded: dict) -> list[str]:
    """The keys of an earlier run's identity that have a value of `RETIRED_VALUES`."""
    return [key for key, value in RETIRED_VALUES.items() if recorded.get(key) == value]


def differences(recorded: dict, present: dict) -> dict[str, list[str]]:
    """The keys whose values differ, each with its differing entries as text.

        >>> differences({"seed": 1, "optimizer": [1e-4, 0.9]}, {"seed": 1, "optimizer": {"rate": 1e-3, "beta": 0.9}})
        {'optimizer': ['rate: 0.001, was 0.0001']}

    Args:
        recorded: the identity of the earlier run, as read from JSON.
        present: the identity of this run, as JSON values. Keys that it lacks are not compared.
    """
    found = {}
    for key, value in present.items():
        if key in _ADDED and key not in recorded:
            continue
        before = recorded.get(key)
        if not _same_entry(key, before, value):
            found[key] = _entries(key, before, value)
    return found


def same(recorded: Any, present: Any) -> bool:
    """True where a recorded value and a present one (an identity, or an entry of one) mean the same settings.

    A recorded list may be shorter than the present group: the last entries did not exist when it was written.
    """
    if isinstance(present, dict) and isinstance(recorded, list):
        return len(recorded) <= len(present) and all(map(same, recorded, present.values()))
    if isinstance(present, dict) and isinstance(recorded, dict):
        present = {key: value for key, value in present.items() if key in recorded or key not in _ADDED}
        names = {**recorded, **present}
        return all(_same_entry(name, recorded.get(name), present.get(name)) for name in names)
    return recorded == present


def _same_entry(name: str, recorded: Any, present: Any) -> bool:
    """`same` of the entry of this name; None: not set, or not recorded."""
    if name in _PATHS and recorded and present:
        return os.path.normpath(recorded) == os.path.normpath(present)
    return same(recorded, present)


def describe(found: dict[str, list[str]]) -> str:
    """`differences` as text: the keys, and in parentheses the first differing entries."""
    entries = [entry for key in found for entry in found[key]]
    shown = "; ".join(entries[:_SHOWN])
    if len(entries) > _SHOWN:
        shown += f" and {len(entries) - _SHOWN} more"
    return f"{', '.join(found)} differ ({shown})"


def _entries(key: str, before: Any, now: Any) -> list[str]:
    """The differing entries of one key, each as `name: now, was before`."""
    if not isinstance(now, dict):
        return [f"{key}: {now}, was {before}"]

    if isinstance(before, list):
        before = dict(zip(now, before, strict=False))
        now = {name: now[name] for name in before}  # entries that the list could not record are not compared
    if not isinstance(before, dict):
        return [f"{key}: {now}, was {before}"]

    names = [name for name in {**before, **now} if not _same_entry(name, before.get(name), now.get(name))]
    return [f"{name}: {now.get(name)}, was {before.get(name)}" for name in names] or [f"{key}: other entries"]
