"""Refuses an option of the command line that has no effect with the others. (A YAML file serves many runs.)"""

from collections.abc import Callable, Collection
from typing import Any

from bert_hf.config.learning_checks import WITHOUT_WARMUP
from bert_hf.errors import InputError

OF_A_VOCABULARY = ("vocab_size", "min_frequency", "limit_alphabet", "tokenizer_sample_bytes")  # how it is trained
_LOADED = ("tokenizer_name", "model_name_or_path")  # where no vocabulary is trained

# An option → others with which it has no effect: whatever their value, or with the one value that is named
_NO_EFFECT_WITH = {
    **dict.fromkeys(OF_A_VOCABULARY, _LOADED),
    **dict.fromkeys(("config_name", "position_initializer"), ("model_name_or_path",)),
    "validation_split_percentage": ("validation_file",),
    "test_split_percentage": ("test_file",),
    "min_steps": ("max_steps",),
    "num_train_epochs": ("max_hours",),  # with --max_steps it is overridden, as TrainingArguments document
    **dict.fromkeys(("save_minutes", "save_total_limit"), ("save_strategy no",)),
    "save_steps": ("save_strategy no", "save_strategy epoch", "save_strategy best"),
    "eval_steps": ("eval_strategy no", "eval_strategy epoch"),
    **dict.fromkeys(("eval_delay", "metric_for_best_model", "greater_is_better"), ("eval_strategy no",)),
    "warmup_steps": tuple(f"lr_scheduler_type {schedule}" for schedule in WITHOUT_WARMUP),
    "logging_steps": ("logging_strategy no", "logging_strategy epoch"),
}
# An option → others, with the value that they need, without any of which it has no effect (a task may name a dataset)
_NO_EFFECT_WITHOUT = {"muon_learning_rate": ("optim muon",), "dataset_config_name": ("dataset_name", "task")}


def refuse_without_effect(given: Collection[str], values: Any, default: Callable[[str], Any]) -> None:
    """Refuses the first option of the command line that the others, also those of the YAML file, make useless.

    Args:
        given: the options of the command line.
        values: all options.
        default: gives the default of an option.

    Raises:
        InputError: names both options.
    """

    def holds(name: str, value: str) -> bool:
        found = getattr(values, name, None)
        return str(getattr(found, "value", found)) == value if value else found not in (None, False, default(name))

    for name, others in _NO_EFFECT_WITH.items():
        if name not in given or not getattr(values, name):  # --save_minutes 0 agrees with --save_strategy no
            continue
        for other, _, value in (entry.partition(" ") for entry in others):
            if holds(other, value):
                what = f"it has no effect with --{other} {value}".rstrip()
                remedy = f"leave it out, or give another --{other}" if value else "leave one of the two out"
                raise InputError(what, where=f"--{name}", remedy=remedy)

    for name, needed in _NO_EFFECT_WITHOUT.items():
        any_holds = any(holds(other, value) for other, _, value in (entry.partition(" ") for entry in needed))
        if name in given and not any_holds:
            what, remedy = f"it has no effect without --{needed[0]}", "leave it out, or give both"
            raise InputError(what, where=f"--{name}", remedy=remedy)
