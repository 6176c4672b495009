"""A saved training state is restored as it was, whatever the state: Hypothesis draws it."""

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from bert_hf.training.checkpoints.trainer_state import load_state, save_state

IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a disk's fsync would take most of the time
DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
          torch.float16, torch.bfloat16, torch.float32, torch.float64]  # fmt: skip
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@st.composite
def arrays(draw) -> torch.Tensor | np.ndarray:
    """Arrays of any shape and type, also transposed and with steps."""
    shape, values = draw(SHAPES), np.random.default_rng(draw(st.integers(0, 2**32)))
    if draw(st.booleans()):
        made = torch.from_numpy(values.integers(-100, 100, shape)).to(draw(st.sampled_from(DTYPES)))
        return made.mT if made.dim() > 1 else made[::2] if made.dim() else made
    types = ["bool", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]
    made = values.integers(-100, 100, shape).astype(draw(st.sampled_from(types)))
    return made.T[::-1] if made.ndim else made


LEAVES = (st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=["Cs"]))
          | arrays() | st.sampled_from([np.float32(0.1), np.float64(0.1), np.int64(-3), np.bool_(True)]))  # fmt: skip
KEYS = st.text("ab", max_size=2) | st.integers(0, 3) | st.none() | st.tuples(st.integers(0, 2), st.booleans())
STATES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


def equal(a, b) -> bool:
    """Like ==, but types count, NaN equals itself, tensors are compared whole, and a NumPy scalar is a number."""
    if isinstance(a, np.generic):
        a = a.item()
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return repr(a) == repr(b)


@given(STATES)
def test_a_state_is_restored(state):
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        save_state(state, Path(folder, "s"))
        assert equal(state, load_state(Path(folder, "s")))
