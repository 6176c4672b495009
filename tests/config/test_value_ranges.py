"""Allowed numbers of the options."""

import re
from dataclasses import fields
from types import SimpleNamespace

import pytest
from helpers.argument_classes import FINETUNING_RECIPES

from bert_hf.analysis.features import FeatureArguments
from bert_hf.analysis.probe import ProbeArguments
from bert_hf.analysis.study import StudyArguments
from bert_hf.config.arguments import OutputArguments, PrepareArguments
from bert_hf.config.split_arguments import SplitArguments
from bert_hf.config.value_ranges import Range, check_ranges
from bert_hf.errors import InputError
from bert_hf.preflight.recipes import ESTIMATING_ARGUMENTS


def test_a_range_knows_its_ends():
    assert 0 in Range(0, 1)
    assert 1 in Range(0, 1)
    assert 0 not in Range(0, 1, above=True)
    assert 1 not in Range(0, 1, below=True)
    for value in (float("nan"), float("inf"), -float("inf")):
        assert value not in Range(-1e300, 1e300)
    assert str(Range(0, 1, above=True, below=True)) == "above 0 and below 1"
    assert check_ranges(SimpleNamespace(seed=1, dropout=None, max_steps=-1, unknown=-7)) == "numbers: 1 checked"


def test_every_number_of_ours_has_a_range():
    classes = {cls for group in FINETUNING_RECIPES.values() for cls in group} | {*ESTIMATING_ARGUMENTS, SplitArguments}
    classes |= {PrepareArguments, OutputArguments, FeatureArguments, ProbeArguments, StudyArguments}
    numbers = {f.name for cls in classes for f in fields(cls) if re.search(r"\b(int|float)\b", str(f.type))}
    assert len(numbers) > 70
    for name in sorted(numbers):
        with pytest.raises(InputError, match=f"--{name}: nan is out of range"):
            check_ranges(SimpleNamespace(**{name: float("nan")}))
