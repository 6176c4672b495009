"""Options of `split.py`."""

from dataclasses import dataclass

from bert_hf.config.finetuning_arguments import LabelledColumns
from bert_hf.config.parser import option


@dataclass
class SplitArguments(LabelledColumns):
    """Which labelled rows are split, and how."""

    train_file: list[str] | None = option(None, "Labelled rows: tables or folders, as in finetune_classification.py.")
    problem_type: str | None = option(
        None, "regression: labels are numbers; by default they are names of classes.",
        ("single_label_classification", "regression"),
    )  # fmt: skip
    encoding: str | None = option(None, "Encoding of the files, e.g. latin-1 (UTF-16 is recognised).")
    folds: int = option(5, "Folds of a cross-validation, each row a test row of one of them; 1 makes one split.")
    validation_split_percentage: float = option(10.0, "Validation rows, in % of all.")
    test_split_percentage: float | None = option(
        None, "Test rows of one split, in % of all; by default 20. (Of several folds they are 100 / folds %.)"
    )
    split_seed: int = option(0, "Seed of the split.")
