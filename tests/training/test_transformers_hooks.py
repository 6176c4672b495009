"""The private parts of transformers' Trainer that the trainers rely on exist, and are all listed."""

import ast
import inspect

import transformers
from transformers import Trainer

from bert_hf.finetuning import trainer as finetuner
from bert_hf.training import resumable_trainer, trainer
from bert_hf.training.transformers_hooks import ATTRIBUTES, METHODS, TESTED, find_differences

OURS = (resumable_trainer, trainer, finetuner)


def test_the_installed_trainer_has_them_with_the_same_parameters():
    found = find_differences(Trainer)
    assert not found, f"transformers {transformers.__version__} differs from {TESTED}: {'; '.join(found)}"


def test_a_trainer_of_another_version_is_described():
    class Changed(Trainer):
        _save_checkpoint = None

        def _load_scaler(self, folder, strict=True):
            self._tr_loss = self._total_loss_scalar = self._globalstep_last_logged = 0.0
            self._eval_dataloaders = {}

    assert find_differences(Changed) == [
        "Trainer._load_scaler takes (folder, strict), not (checkpoint)",
        "Trainer._save_checkpoint does not exist any more",
        "Trainer does not use self._created_lr_scheduler any more",
    ]


def private_names(node: ast.AST) -> set[str]:
    """Names with one underscore that are defined, or used as attributes of `self` or `super()`."""
    found = {each.name for each in ast.walk(node) if isinstance(each, ast.FunctionDef)}
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute):
            owner = each.value.func if isinstance(each.value, ast.Call) else each.value
            if isinstance(owner, ast.Name) and owner.id in ("self", "super"):
                found.add(each.attr)
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def test_every_private_part_that_is_used_is_listed():
    source = inspect.getsource(Trainer)
    used = set().union(*(private_names(ast.parse(inspect.getsource(module))) for module in OURS))

    methods = {name for name in used if callable(getattr(Trainer, name, None))}
    assert methods == {method.name for method in METHODS}

    attributes = {name for name in used - methods if f"self.{name} " in source or f"self.{name}." in source}
    assert attributes <= set(ATTRIBUTES)
    assert set(ATTRIBUTES) <= used
