"""The identity of a run: which settings make two runs different.

An identity is a dict of settings. A value may be a group, itself a dict (`optimizer` → `learning_rate`, …).
"""

from enum import Enum
from typing import Any

from bert_hf.config.files import file_checksum, text_checksum
from bert_hf.models.loading import find_checkpoint, weight_files

_EVALUATION = ("eval_strategy", "eval_steps", "eval_delay", "eval_on_start")
_MAX_ENTRIES = 4  # that a message lists


def weights_checksum(checkpoint: str) -> str:
    """Return 16 hex digits that identify a checkpoint's weights; they tell two checkpoints at one path apart."""
    files = weight_files(find_checkpoint(checkpoint))
    return text_checksum(" ".join(map(file_checksum, files)))[:16]


def settings(args: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Return a group of a run's identity: the named attributes of its arguments, as JSON values."""
    values = {name: getattr(args, name) for name in names}
    return {name: str(value) if isinstance(value, Enum) else value for name, value in values.items()}


def selection_identity(args: Any) -> dict[str, Any]:
    """Return the part of a run's identity on model selection: which weights are kept, by which evaluations."""
    if not args.load_best_model_at_end:
        return {"kept": "the last weights"}

    evaluation = settings(args, _EVALUATION)
    if args.eval_strategy != "steps":  # it has no effect then
        evaluation["eval_steps"] = None
    return {"kept": args.metric_for_best_model, "evaluation": evaluation}


def differences(recorded: dict, present: dict, was: str = "was") -> dict[str, list[str]]:
    """Return the keys whose values differ, each with one text per differing entry; empty without a difference.

        >>> differences({"seed": 1, "optimizer": {"rate": 1e-4}}, {"seed": 1, "optimizer": {"rate": 1e-3}})
        {'optimizer': ['rate: 0.001, was 0.0001']}

    Keys that `present` lacks are not compared. Both are JSON values; `was` stands before the recorded one.
    """
    changed = {}
    for key, now in present.items():
        before = recorded.get(key)
        if isinstance(now, dict) and isinstance(before, dict):
            names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
            entries = [f"{name}: {now.get(name)}, {was} {before.get(name)}" for name in names]
        else:
            entries = [] if before == now else [f"{key}: {now}, {was} {before}"]
        if entries:
            changed[key] = entries
    return changed


def describe_differences(changed: dict[str, list[str]]) -> str:
    """Return `differences` as a clause of an error, `seed, optimizer differ (…)`, with the first entries."""
    entries = [entry for key in changed for entry in changed[key]]
    shown = "; ".join(entries[:_MAX_ENTRIES])
    if len(entries) > _MAX_ENTRIES:
        shown += f" and {len(entries) - _MAX_ENTRIES} more"
    return f"{', '.join(changed)} differ ({shown})"
