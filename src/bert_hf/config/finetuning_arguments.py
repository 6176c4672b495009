"""Options of labelled data: what all tasks share, and those of each task family."""

from dataclasses import dataclass
from typing import ClassVar

from bert_hf.config.arguments import (
    CardArguments,
    CheckpointArguments,
    DataArguments,
    HeldOutArguments,
    LengthArguments,
    TextColumnArguments,
    TrainFileArguments,
)
from bert_hf.config.options import option

MIN_STEPS = 200  # of a run whose number of epochs is not given

# ---- the data


@dataclass
class SplitOptions:
    """How validation and test rows are split off."""

    validation_split_percentage: float = option(
        10.0, "Validation rows, in % of all.", range="(0, 100)", not_with="validation_file"
    )
    test_split_percentage: float = option(
        20.0, "Test rows of one split, in % of all.", range="(0, 100)", not_with="test_file"
    )
    split_seed: int = option(0, "Seed of the split, which runs with several values of --seed share.")


@dataclass
class LabelledColumns(TextColumnArguments):
    """Which columns of labelled rows are read, and what they hold."""

    text_pair_column: str | None = option(None, "Column of the second text, if there are pairs.")
    label_column: str | None = option(None, "Column of the label. Default: a usual name, such as label.")
    problem_type: str | None = option(
        None, "regression: labels are numbers. Default: they are class names.",
        ("single_label_classification", "regression"),
    )  # fmt: skip
    encoding: str | None = option(None, "Encoding of the files, if it is not UTF-8: latin-1, cp1252, …")


@dataclass
class SplitArguments(LabelledColumns, SplitOptions, TrainFileArguments):
    """Options of `split.py`: which labelled rows are split, and how."""

    folds: int = option(5, "Number of cross-validation folds; 1: a single split.", range="[1, 1000]")


# ---- the tasks


@dataclass
class TaskArguments(
    CardArguments, SplitOptions, LengthArguments, HeldOutArguments, DataArguments, CheckpointArguments
):
    """Which checkpoint is fine-tuned on which rows: options of every task.

    In Python `dataset_name` may also be `{"train": …}`, the `datasets.Dataset` of each split.
    """

    from_command_line: ClassVar[frozenset[str]] = frozenset()  # options that it gives, see `parse`

    from_scratch: bool = option(False, "Train the checkpoint's architecture from random weights.")
    tokenizer_name: str | None = option(None, "Tokenizer, if it is not the checkpoint's own.")
    test_file: list[str] | None = option(None, "Test rows. Default: split off (texts and choices only).")
    max_train_samples: int | None = option(None, "Most training rows; --split_seed draws them.", range="[1, inf)")
    max_eval_samples: int | None = option(None, "Most validation and most test rows.", range="[1, inf)")
    write_predictions: bool = option(
        False, "Write the predictions of test rows, else of validation rows. Default: true for words and questions."
    )
    min_steps: int | None = option(
        None,
        "Minimum number of optimizer steps; whole epochs are added to reach it. "
        f"Default: {MIN_STEPS} without --num_train_epochs.",
        range="[0, inf)",
        not_with="max_steps",
    )
    early_stopping_patience: int | None = option(None, "Stop N evaluations after the best one.", range="[1, inf)")

    @property
    def validates_on_training_rows(self) -> bool:
        """As the runs of a study with few rows do: nothing may be chosen by such validation rows."""
        return self.train_file is not None and self.train_file == self.validation_file

    def files(self) -> dict[str, list[str]]:
        """The files of `train`, `validation` and `test`, of those that are given."""
        files_of_part = {"train": self.train_file, "validation": self.validation_file, "test": self.test_file}
        return {part: files for part, files in files_of_part.items() if files}


@dataclass
class ClassificationArguments(LabelledColumns, TaskArguments):
    """Options of `finetune_classification.py`."""

    task: str | None = option(
        None, "A known task by its name in lower case, e.g. mrpc (GLUE), sick, spam; an unknown name lists them all."
    )
    data_dir: str | None = option(None, "The folder of the benchmark's own files.", only_with="task")
    long_texts: str = option(
        "head",
        "How to read texts that are too long: head, head_tail, or windows (everything; logits are averaged).",
        ("head", "head_tail", "windows"),
    )
    class_names: list[str] | None = option(
        None,
        "Names of the labels 0, 1, … in their order, or the labels themselves: of two the second is positive.",
        not_with="problem_type=regression",
    )
    slice_column: str | None = option(None, "Column of groups: slices.csv has their metrics.", not_with="data_dir")
    class_weight: str = option(
        "none",
        "balanced: each class counts alike in the training loss, as class_weight of scikit-learn.",
        ("none", "balanced"),
        not_with="problem_type=regression",
    )
    max_false_positive_rate: float | None = option(
        None,
        "Of two classes: choose the threshold with at most this false-positive rate on the validation rows.",
        range="(0, 1)",
        not_with=("min_precision", "best_f1_threshold"),
    )
    min_precision: float | None = option(
        None, "The same with at least this precision.", range="(0, 1]", not_with="best_f1_threshold"
    )
    best_f1_threshold: bool = option(False, "The same with the best F1.")


FEATURES = ("embeddings", "second_to_last", "last", "weighted_last_4", "concat_last_4", "weighted_all")


@dataclass
class TokenClassificationArguments(TaskArguments):
    """Options of `finetune_token_classification.py`."""

    write_predictions: bool = True
    document_context: bool = option(False, "Fill windows with neighbouring sentences, unlabelled (the paper, 5.3).")
    feature_based: str | None = option(
        None, "Train a BiLSTM on these hidden states of a frozen BERT (paper, table 7). Default: fine-tune BERT.",
        FEATURES, not_with="neftune_noise_alpha",
    )  # fmt: skip


@dataclass
class QuestionAnsweringArguments(TaskArguments):
    """Options of `finetune_question_answering.py`; names and defaults are those of transformers' run_qa."""

    max_seq_length: int = 384
    write_predictions: bool = True
    doc_stride: int = option(128, "Tokens of the context that neighbouring windows share.", range="[0, inf)")
    max_query_length: int = option(64, "Tokens of a question; a longer one is cut (2018 code).", range="[1, inf)")
    n_best_size: int = option(20, "Spans per question in nbest_predictions.json.", range="[1, inf)")
    max_answer_length: int = option(30, "Maximum number of tokens in an answer.", range="[1, inf)")
    version_2_with_negative: bool | None = option(None, "Allow unanswerable questions. Default: as in the data.")
    null_score_diff_threshold: float | None = option(
        None,
        "Predict no answer above this null score difference. Default: chosen on the validation questions.",
        range="(-inf, inf)",
    )
