"""Options of labelled data: those of a fine-tuning run, those that all tasks share, and those of each task family."""

import math
from dataclasses import dataclass
from typing import ClassVar

from bert_hf.config.arguments import (
    CardArguments,
    CaseArguments,
    CheckpointArguments,
    DataArguments,
    HeldOutArguments,
    LengthArguments,
    TextColumnArguments,
    TrainFileArguments,
)
from bert_hf.config.parser import option
from bert_hf.config.training_arguments import RunArguments

# Peak learning rate and epochs by hidden size, up to and including: docs/fine_tuning.md, "Defaults".
_BY_WIDTH = ((128, 1e-3, 4.0), (256, 3e-4, 4.0), (512, 1e-4, 4.0), (math.inf, 5e-5, 3.0))
_MIN_STEPS = 200  # of a run whose number of epochs is not given
_FEW_EVALUATIONS = 10  # a run of more epochs than this is evaluated this often

# ---- the run


@dataclass
class FineTuningArguments(RunArguments):
    """Options of a fine-tuning run; what depends on the model's width or on the number of rows is chosen later."""

    output_dir: str | None = "runs/finetune"
    learning_rate: float | None = option(  # pyright: ignore[reportIncompatibleVariableOverride] - until it is chosen
        None,
        "Peak rate. Default: by hidden size, 1e-3 up to 128, 3e-4 up to 256, 1e-4 up to 512, else 5e-5. "
        "(Grids: the paper's, A.3: 5e-5, 3e-5, 2e-5; the 2018 README's for smaller models: 3e-4 to 3e-5.)",
    )
    per_device_train_batch_size: int = option(32, "The paper's grid: 16, 32 (A.3).")
    per_device_eval_batch_size: int = option(64, "Rows per device in an evaluation batch.")
    num_train_epochs: float | None = option(  # pyright: ignore[reportIncompatibleVariableOverride]
        None,
        "Default: 4 up to hidden size 512, else 3 (the paper's grid: 2, 3, 4; A.3), more if that is fewer than "
        "--min_steps. An explicit number is kept unless --min_steps is set as well.",
    )
    warmup_steps: float = option(
        0.1,
        "A number below 1 is a share of the steps (2018 code: 0.1).",
        range="[0, inf)",
        not_with=("lr_scheduler_type=constant", "lr_scheduler_type=reduce_lr_on_plateau"),
    )
    logging_steps: float = option(0.05, "Log every N steps; below 1: a fraction of all steps.")
    load_best_model_at_end: bool | None = option(  # pyright: ignore[reportIncompatibleVariableOverride]
        None, "Keep the weights of the best evaluation. Default: true if the run is evaluated during training."
    )
    metric_for_best_model: str | None = option(
        None, "Metric that selects the best weights. Default: the task's; below 200 validation rows, the loss."
    )
    train_sampling_strategy: str = option(
        "random",
        "random: as in the 2018 code. group_by_length: texts of similar length share a batch, which saves padding on "
        "a GPU (a CPU computes none).",
        ("random", "group_by_length", "sequential"),
    )

    def __post_init__(self):
        self.best_metric_is_given = self.metric_for_best_model is not None  # the stock class fills in the loss
        self.direction_is_given = self.greater_is_better is not None
        self.epochs_are_given = self.num_train_epochs is not None
        super().__post_init__()

    def _resolve_strategies(self) -> None:
        self.eval_strategy_is_given = self.eval_strategy is not None
        if self.eval_steps is None and self.eval_strategy in (None, "steps"):
            self.eval_steps = self.save_steps  # evaluated where it is saved
        if self.eval_steps is None and self.eval_strategy == "steps":
            self.eval_steps = self.logging_steps  # as the stock class has it
        evaluates = "epoch" if self.eval_steps is None else "steps"
        self.eval_strategy = self.eval_strategy or evaluates

        if self.load_best_model_at_end is None:
            can_keep_best = self.eval_strategy != "no" and self.save_strategy in (None, self.eval_strategy)
            self.load_best_model_at_end = can_keep_best  # pyright: ignore[reportIncompatibleVariableOverride] - None until here
        if self.load_best_model_at_end and self.save_strategy is None:  # only saved weights can be kept
            self.save_strategy = self.eval_strategy
            if self.save_steps is None and self.eval_steps is not None:
                self.save_steps = self.eval_steps

        super()._resolve_strategies()


def resolve_by_width(args, hidden_size: int | None) -> None:
    """Sets learning rate and epochs where they are not given; a network without hidden size gets those of base."""
    width = math.inf if hidden_size is None else hidden_size
    rate, epochs = next((rate, epochs) for most, rate, epochs in _BY_WIDTH if width <= most)
    if args.learning_rate is None:
        args.learning_rate = rate
    if args.num_train_epochs is None:
        args.num_train_epochs = epochs


def resolve_by_rows(args, rows: int, min_steps: int | None) -> None:
    """Adds whole epochs up to `min_steps` optimizer steps, and evaluates a run of many epochs only a few times.

    `rows` are model inputs of an epoch, over all ranks.
    """
    if min_steps is None:
        min_steps = 0 if args.epochs_are_given else _MIN_STEPS

    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    steps = max(1, math.ceil(rows / batch))
    if args.max_steps <= 0 and steps * args.num_train_epochs < min_steps:
        args.num_train_epochs = float(math.ceil(min_steps / steps))

    epochs = args.max_steps / steps if args.max_steps > 0 else args.num_train_epochs
    if epochs > _FEW_EVALUATIONS and args.eval_strategy == "epoch" and not args.eval_strategy_is_given:
        args.eval_strategy, args.eval_steps = type(args.eval_strategy)("steps"), 1 / _FEW_EVALUATIONS
        if args.save_strategy == "epoch":
            args.save_strategy, args.save_steps = type(args.save_strategy)("steps"), 1 / _FEW_EVALUATIONS


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
    separator: str | None = option(
        None, "Between the fields of .csv and .tsv files, `tab` or a character. Default: found in each file."
    )


@dataclass
class SplitArguments(LabelledColumns, SplitOptions, TrainFileArguments):
    """Options of `split.py`: which labelled rows are split, and how."""

    folds: int = option(5, "Number of cross-validation folds; 1: a single split.", range="[1, 1000]")


# ---- the tasks


@dataclass
class TaskArguments(
    CardArguments, SplitOptions, LengthArguments, HeldOutArguments, DataArguments, CaseArguments, CheckpointArguments
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
        f"Default: {_MIN_STEPS} without --num_train_epochs.",
        range="[0, inf)",
        not_with="max_steps",
    )
    early_stopping_patience: int | None = option(None, "Stop N evaluations after the best one.", range="[1, inf)")

    @property
    def validates_on_training_rows(self) -> bool:
        """As the runs of a study with few rows do: nothing may be chosen by such validation rows."""
        return self.train_file is not None and self.train_file == self.validation_file

    def tokenizer(self) -> dict:
        """Return the arguments of `load_tokenizer`."""
        model = self.model_name_or_path
        return {
            "name_or_path": self.tokenizer_name or model,
            "model": model,
            "do_lower_case": self.do_lower_case,
        }

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
