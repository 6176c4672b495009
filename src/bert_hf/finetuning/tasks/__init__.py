"""Tasks: the rows of a run, their baselines, and its report."""

import copy
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from bert_hf.data.text.tokenization import load_tokenizer
from bert_hf.errors import InputError, check_known

# Tasks by the head; one that is not listed has the task that all share
_TASKS = {
    "classification": "ClassificationTask",
    "token_classification": "TokenClassificationTask",
    "question_answering": "QuestionAnsweringTask",
    "multiple_choice": "MultipleChoiceTask",
}


def task_of_rows(
    model: Any,
    parts: Mapping[str, Any],
    head: Any,
    tokenizer: Any = None,
    metrics: Sequence[Any] = (),
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Return the task of rows in memory. Arguments as of `FineTuner`; `parts`: by name, None for one without rows."""
    name = head if isinstance(head, str) else head.name
    module = importlib.import_module(f"{__name__}.{name if name in _TASKS else 'task'}")
    task: Any = getattr(module, _TASKS.get(name, "Task"))
    where = str(model if isinstance(model, str | Path) else model.name_or_path)
    if parts.get("train") is None:
        raise InputError("no training rows", where="FineTuner", remedy="pass train_dataset, or a task")

    for option in options or {}:
        names = [field.name for field in fields(task.arguments)]
        check_known(option, names, f"the head {name!r} has no option {option!r}", "FineTuner")
    rows = {part: own for part, own in parts.items() if own is not None}
    task_args = task.arguments(where, dataset_name=rows, **(options or {}))
    config = None
    if not isinstance(model, str | Path):
        config = copy.copy(model.config)
        config.architectures = [each.__name__ for each in type(model).__mro__]
    return task(task_args, tokenizer or load_tokenizer(where), head, metrics, config)
