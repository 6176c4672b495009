"""Declares options: dataclass fields with a default, a help text and limits. Imports neither torch nor transformers.

    save_minutes: float = option(15.0, "Minutes between checkpoints.", range="[0, inf)", not_with="save_strategy=no")

Option classes are in the modules `*_arguments.py` beside this one; a class's docstring is its heading in `--help`. A
class that only changes a default writes `save_minutes: float = 5.0`: the rest of the declaration is inherited.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, field, fields, is_dataclass
from typing import Any

from bert_hf.errors import InputError


def option(
    default: Any,
    help: str,
    choices: Iterable | None = None,
    *,
    common: bool = True,
    range: str | None = None,
    only_with: str | tuple[str, ...] = (),
    not_with: str | tuple[str, ...] = (),
) -> Any:
    """Declare an option: a dataclass field with its help text and its limits.

    Args:
        common: `--help` lists it; `--help all` lists all others, too.
        range: the interval of its numbers: "[0, 1)" includes 0 and excludes 1.
        only_with: it has no effect without one of these options, or values of options ("optim=muon").
        not_with: it has no effect with any of these.
    """
    metadata: dict[str, Any] = {"help": help.replace("%", "%%"), "common": common, "range": range}
    if choices:
        metadata["choices"] = choices
    for name, others in (("only_with", only_with), ("not_with", not_with)):
        metadata[name] = (others,) if isinstance(others, str) else others
    return field(default=default, metadata=metadata)


def declarations(cls: type) -> Iterator[tuple[Field, Mapping[str, Any]]]:
    """Yield each field with what `option` declared, in its class or (if that only sets a default) in a parent."""
    for each in fields(cls):
        same_name = (parent.__dataclass_fields__.get(each.name) for parent in cls.__mro__ if is_dataclass(parent))
        declared = (field.metadata for field in same_name if field is not None and field.metadata)
        yield each, next(declared, each.metadata)


def check_ranges(options: Any) -> None:
    """Raise an `InputError` if a number of these options, or one in a list, is outside its interval."""
    for each, declared in declarations(type(options)):
        value, interval = getattr(options, each.name), declared.get("range")
        if value is None or interval is None:
            continue

        low, high = (float(end) for end in interval[1:-1].split(","))
        for number in value if isinstance(value, list) else [value]:
            above_low = low <= number if interval[0] == "[" else low < number
            below_high = number <= high if interval[-1] == "]" else number < high
            if not (above_low and below_high):  # so that NaN is an error, too
                raise InputError(f"{number} is out of range", where=f"--{each.name}", remedy=f"must be in {interval}")
