"""Options of the fine-tuning recipes: those that all tasks share, those of each task family, and those of the run."""

import math
from dataclasses import dataclass

from bert_hf.config.languages import checked_language
from bert_hf.config.parser import option
from bert_hf.config.training_arguments import RunArguments

# Peak learning rate and epochs by hidden size, up to and including: docs/fine_tuning.md, "Defaults".
_BY_WIDTH = ((128, 1e-3, 4.0), (256, 3e-4, 4.0), (512, 1e-4, 4.0), (math.inf, 5e-5, 3.0))
_MIN_STEPS = 200  # of a run whose number of epochs is not given
_FEW_EVALUATIONS = 10  # a run of more epochs than this is evaluated this often


@dataclass
class FineTuningArguments(RunArguments):
    """Options of a fine-tuning run; what depends on the model's width or on the number of rows is chosen later."""

    output_dir: str | None = option("runs/finetune", "Where the run writes.")
    learning_rate: float | None = option(  # pyright: ignore[reportIncompatibleVariableOverride] - until it is chosen
        None,
        "Peak rate. By default by hidden size: 1e-3 up to 128, 3e-4 up to 256, 1e-4 up to 512, else 5e-5. "
        "(Grids: the paper's, A.3: 5e-5, 3e-5, 2e-5; the 2018 README's for smaller models: 3e-4 to 3e-5.)",
    )
    per_device_train_batch_size: int = option(32, "The paper's grid: 16, 32 (A.3).")
    per_device_eval_batch_size: int = option(64, "Rows per device in an evaluation batch.")
    num_train_epochs: float | None = option(  # pyright: ignore[reportIncompatibleVariableOverride]
        None,
        "By default 4 up to hidden size 512, else 3 (the paper's grid: 2, 3, 4; A.3), and more where these are fewer "
        "than --min_steps. A number that is given is kept, unless --min_steps is given too.",
    )
    weight_decay: float = option(0.01, "As in pre-training.")
    adam_epsilon: float = option(1e-6, "As in pre-training.")
    warmup_steps: float = option(0.1, "A number below 1 is a share of the steps (2018 code: 0.1).")
    logging_steps: float = option(
        0.05, "Steps between log lines of the training loss; a number below 1 is a share of all steps."
    )
    eval_strategy: str | None = option(
        None, f"no, steps, epoch. By default epoch, or {_FEW_EVALUATIONS} times in a run of more epochs than that."
    )
    load_best_model_at_end: bool | None = option(  # pyright: ignore[reportIncompatibleVariableOverride]
        None, "Keep the weights of the best evaluation. By default true if the run is evaluated during training."
    )
    metric_for_best_model: str | None = option(
        None, "Metric that decides which weights are kept. By default the task's; below 200 validation rows the loss."
    )
    do_predict: bool = option(True, "Evaluate the test rows at the end, and write their predictions.")
    train_sampling_strategy: str = option(
        "group_by_length",
        "Texts of similar length share a batch: little padding. random: as in the 2018 code.",
        ("group_by_length", "random", "sequential", "batch_rebalance"),
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
            kept = self.eval_strategy != "no" and self.save_strategy in (None, self.eval_strategy)
            self.load_best_model_at_end = kept  # pyright: ignore[reportIncompatibleVariableOverride] - None until here
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

    Args:
        rows: model inputs of an epoch, over all ranks.
        min_steps: None: 200 where the number of epochs is not given, else that number is kept.
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


@dataclass
class TaskArguments:
    """Which checkpoint is fine-tuned on which rows: options of every task."""

    model_name_or_path: str | None = option(None, "Pre-trained checkpoint (folder or Hub id).")
    from_scratch: bool = option(False, "Use the checkpoint's shape with randomly initialized weights.")
    tokenizer_name: str | None = option(None, "Tokenizer, if it is not the checkpoint's own.")
    dataset_name: str | None = option(None, "Hub dataset id.")
    dataset_config_name: str | None = option(None, "Its configuration.")
    train_file: list[str] | None = option(None, "Rows to train on: files, globs.")
    validation_file: list[str] | None = option(None, "Validation rows; by default split off the training rows.")
    test_file: list[str] | None = option(None, "Test rows; by default split off the training rows.")
    max_seq_length: int = option(128, "Maximum number of tokens in a model input.")
    max_train_samples: int | None = option(None, "Use at most this many training rows, sampled with --split_seed.")
    max_eval_samples: int | None = option(
        None, "Use at most this many validation and test rows, sampled with --split_seed."
    )
    validation_split_percentage: float = option(10.0, "Percentage of the rows split off for validation.")
    test_split_percentage: float = option(20.0, "Percentage of the rows split off for testing.")
    split_seed: int = option(
        0, "Seed of the split; separate from --seed, so that runs with several seeds share one split."
    )
    evaluate_test: bool = option(True, "Evaluate on the test rows at the end; false: leave them for later.")
    write_predictions: bool = option(False, "Write the predictions for the test rows into the output folder.")
    min_steps: int | None = option(
        None,
        "Minimum number of optimizer steps; whole epochs are added to reach it. "
        f"By default {_MIN_STEPS} where --num_train_epochs is not given.",
    )
    reinit_layers: int = option(0, "Re-initialize this many of the top layers.")
    reinit_pooler: bool = option(False, "Re-initialize the pooler.")
    layerwise_lr_decay: float = option(
        1.0, "Factor by which the learning rate decreases from each layer to the one below it."
    )
    early_stopping_patience: int | None = option(None, "Stop after this many evaluations without improvement.")
    language: str | None = option(None, "Language, for the model card.")
    dataset_license: str | None = option(None, "Licence of the data, for the model card.")
    dataset_source: str | None = option(None, "Source of the data, for the model card.")

    def __post_init__(self):
        self.language = checked_language(self.language)

    def files(self) -> dict[str, list[str]]:
        """The files of `train`, `validation` and `test`, of those that are given."""
        given = {"train": self.train_file, "validation": self.validation_file, "test": self.test_file}
        return {part: files for part, files in given.items() if files}


@dataclass
class LabelledColumns:
    """Which columns of labelled rows are read."""

    text_column: str | None = option(None, "Column of the text; by default found in the data.")
    text_pair_column: str | None = option(None, "Column of the second text; by default found in the data.")
    label_column: str | None = option(None, "Column of the label; by default found in the data.")


@dataclass
class ClassificationArguments(LabelledColumns, TaskArguments):
    """Options of `finetune_classification.py`."""

    task: str | None = option(
        None, "A task by name: cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli, sick, sick_relatedness, spam."
    )
    data_dir: str | None = option(None, "With --task: the folder of the benchmark's own files.")
    problem_type: str | None = option(
        None, "By default single_label_classification; regression: labels are numbers.",
        ("single_label_classification", "regression"),
    )  # fmt: skip
    encoding: str | None = option(None, "Encoding of the files, if it is not UTF-8: latin-1, cp1252, …")
    drop_rare: int | None = option(None, "Leave out classes with fewer training rows than this.")
    long_texts: str = option(
        "head",
        "Part of a longer text that is read: head, head_tail, or windows (all of it; logits are averaged).",
        ("head", "head_tail", "windows"),
    )


FEATURES = ("embeddings", "second_to_last", "last", "weighted_last_4", "concat_last_4", "weighted_all")


@dataclass
class TokenClassificationArguments(TaskArguments):
    """Options of `finetune_token_classification.py`."""

    test_file: list[str] | None = option(None, "Test sentences; none are split off.")
    tag_names: list[str] | None = option(None, "Names of the labels 0, 1, …, if the data hold only numbers.")
    document_context: bool = option(
        False, "Fill each window with the neighbouring sentences of the document, unlabelled (the paper, 5.3)."
    )
    feature_based: str | None = option(
        None, "Train a BiLSTM on these hidden states of the frozen BERT (the paper, table 7); by default BERT itself.",
        FEATURES,
    )  # fmt: skip
    lstm_hidden_size: int | None = option(
        None, "With --feature_based: size of the BiLSTM in each direction; by default 768 (the paper)."
    )
    write_predictions: bool = option(
        True, "Write predictions.conll (word, label, prediction) for the test file, or else the validation file."
    )


@dataclass
class QuestionAnsweringArguments(TaskArguments):
    """Options of `finetune_question_answering.py`; names and defaults are those of transformers' run_qa."""

    train_file: list[str] | None = option(
        None, "SQuAD's JSON (1.1, 2.0), or JSON lines: id, context, question, answers."
    )
    test_file: list[str] | None = option(None, "Test questions; none are split off.")
    max_seq_length: int = option(384, "Tokens of a window: question, and as much of its context as fits.")
    doc_stride: int = option(128, "Tokens of the context that neighbouring windows share.")
    max_query_length: int = option(64, "Maximum number of tokens in a question; a longer one is cut (2018 code).")
    n_best_size: int = option(20, "Spans per question in nbest_predictions.json, not counting that of no answer.")
    max_answer_length: int = option(30, "Maximum number of tokens in an answer.")
    version_2_with_negative: bool | None = option(
        None, "Whether some questions have no answer; by default true if the data have such questions."
    )
    null_score_diff_threshold: float | None = option(
        None, "A question has no answer if its null odds exceed this; by default chosen on the validation questions."
    )
    write_predictions: bool = option(
        True,
        "Write predictions.json, nbest_predictions.json and null_odds.json of the test (else validation) questions.",
    )

    def __post_init__(self):
        super().__post_init__()
        if self.doc_stride > self.max_seq_length - 4:  # three special tokens, and one that is not shared
            raise ValueError(
                f"--doc_stride {self.doc_stride} must be less than --max_seq_length {self.max_seq_length} without its "
                "3 special tokens"
            )
