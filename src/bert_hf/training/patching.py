"""Replaces attributes of an object for a while."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def replaced_attributes(owner: object, **changes) -> Iterator[None]:
    """Context manager: replace attributes or methods of an instance or a module, and restore them at its end."""
    before = {name: vars(owner)[name] for name in changes if name in vars(owner)}
    vars(owner).update(changes)
    try:
        yield
    finally:
        for name in changes:
            del vars(owner)[name]
        vars(owner).update(before)
