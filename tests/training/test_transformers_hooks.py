"""Lists the private parts of transformers' Trainer that the trainers override or use; checks that they exist.

A release of transformers may rename or change them without notice. Then `find_differences` says which, instead of a
run that fails, or silently trains something else.
"""

import ast
import inspect
from typing import NamedTuple

import transformers
from transformers import Trainer

from bert_hf.finetuning import trainer as finetuner
from bert_hf.pretraining import trainer
from bert_hf.training import resumable_trainer

OURS = (resumable_trainer, trainer, finetuner)
TESTED = "transformers 5.19 to 5.23"


class Method(NamedTuple):
    """A method of Trainer and the names of its parameters."""

    name: str
    parameters: tuple[str, ...]


_END_OF_STEP = ("tr_loss", "grad_norm", "model", "trial", "epoch", "ignore_keys_for_eval", "start_time")
_EPOCH = (
    "model", "epoch", "train_dataloader", "steps_in_epoch", "num_update_steps_per_epoch", "trial",
    "ignore_keys_for_eval", "start_time", "resume_from_checkpoint", "epochs_trained",
    "steps_trained_in_current_epoch",
)  # fmt: skip

# Private methods that are overridden or called.
METHODS = (
    Method("_determine_best_metric", ("metrics", "trial")),
    Method("_finalize_training", ("trial", "num_train_samples", "start_time")),
    Method("_get_eval_sampler", ("eval_dataset",)),
    Method("_get_grad_norm", ("model", "grad_norm")),
    Method("_get_output_dir", ("trial",)),
    Method("_get_train_sampler", ("train_dataset",)),
    Method("_load_best_model", ()),
    Method("_load_from_checkpoint", ("resume_from_checkpoint", "model")),
    Method("_load_optimizer_and_scheduler", ("checkpoint",)),
    Method("_load_rng_state", ("checkpoint",)),
    Method("_load_scaler", ("checkpoint",)),
    Method("_maybe_log_save_evaluate", (*_END_OF_STEP, "learning_rate")),
    Method("_prepare_for_training", ("max_steps", "train_dataloader", "resume_from_checkpoint")),
    Method("_run_epoch", _EPOCH),
    Method("_save_checkpoint", ("model", "trial")),
)

# Private attributes of an instance that are read or set.
ATTRIBUTES = ("_created_lr_scheduler", "_globalstep_last_logged", "_total_loss_scalar", "_tr_loss", "_trial")


def find_differences(trainer: type[Trainer]) -> list[str]:
    """One line for each method or attribute that is gone or different in a Trainer class."""
    source = inspect.getsource(trainer)
    found = []

    for name, expected in METHODS:
        method = getattr(trainer, name, None)
        if method is None:
            found.append(f"Trainer.{name} does not exist any more")
            continue
        parameters = tuple(inspect.signature(method).parameters)[1:]  # without self
        if parameters != expected:
            found.append(f"Trainer.{name} takes ({', '.join(parameters)}), not ({', '.join(expected)})")

    found += [f"Trainer does not use self.{name} any more" for name in ATTRIBUTES if f"self.{name}" not in source]
    return found


def test_the_installed_trainer_has_them_with_the_same_parameters():
    found = find_differences(Trainer)
    assert not found, f"transformers {transformers.__version__} differs from {TESTED}: {'; '.join(found)}"


def private_names(node: ast.AST) -> set[str]:
    """Names with one underscore that are defined, given by keyword, or used as attributes of `self` or `super()`."""
    found = {each.name for each in ast.walk(node) if isinstance(each, ast.FunctionDef)}
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute):
            owner = each.value.func if isinstance(each.value, ast.Call) else each.value
            if isinstance(owner, ast.Name) and owner.id in ("self", "super"):
                found.add(each.attr)
        elif isinstance(each, ast.keyword) and each.arg:  # replaced_attributes(self, _name=…)
            found.add(each.arg)
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def test_every_private_part_that_is_used_is_listed():
    source = inspect.getsource(Trainer)
    used = set().union(*(private_names(ast.parse(inspect.getsource(module))) for module in OURS))

    methods = {name for name in used if callable(getattr(Trainer, name, None))}
    assert methods == {method.name for method in METHODS}

    attributes = {name for name in used - methods if f"self.{name} " in source or f"self.{name}." in source}
    assert attributes <= set(ATTRIBUTES)
    assert set(ATTRIBUTES) <= used
