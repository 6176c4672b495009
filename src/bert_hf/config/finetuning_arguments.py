"""Options of labelled rows, of all tasks, each head and `split`; a class's docstring is its heading in `--help`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from bert_hf.config.arguments import READ_IN_LOWER_CASE, check_language
from bert_hf.config.options import option

MIN_STEPS = 200  # of a run whose number of epochs is not given
FEATURES = ("embeddings", "second_to_last", "last", "weighted_last_4", "concat_last_4", "weighted_all")


@dataclass
class LabelledColumns:
    """Columns of the rows."""

    text_column: str | None = option(None, "Column of the text. Default: a usual name, such as text.")
    text_pair_column: str | None = option(None, "Column of the second text, if there are pairs.")
    label_column: str | None = option(None, "Column of the label. Default: a usual name, such as label.")
    label_separator: str | None = option(None, "Separates the labels of a row that may have several, as in a|b.")
    label_columns: list[str] | None = option(
        None, "Columns of 0 and 1, one for each label of a row that may have several.", not_with="label_column"
    )
    problem_type: str | None = option(
        None,
        "regression: labels are numbers. Default: class names; several per row where they are lists.",
        ("single_label_classification", "multi_label_classification", "regression"),
    )
    encoding: str | None = option(None, "Text encoding of the files (default: UTF-8).")
    separator: str | None = option(None, "Between fields: `tab` or a character. Default: found in each .csv and .tsv.")


@dataclass
class SplitArguments(LabelledColumns):
    """Rows, and how they are split."""

    train_file: list[str] | None = option(None, "Labelled rows: .csv .tsv .jsonl .parquet, also .gz .xz.")
    folds: int = option(5, "Number of cross-validation folds; 1: a single split.", range="[1, 1000]")
    validation_split_percentage: float = option(10.0, "Validation rows, in %.", range="(0, 100)")
    test_split_percentage: float = option(20.0, "Test rows of a single split, in %.", range="(0, 100)")
    split_seed: int = option(0, "Random seed of the split.", range="[0, inf)")


@dataclass
class TaskArguments:
    """Checkpoint and rows.

    Options of every task. In Python `dataset_name` may also be `{"train": …}`, the `datasets.Dataset` of each split.
    """

    from_command_line: ClassVar[frozenset[str]] = frozenset()  # names of the options given there, set by `parse`

    model_name_or_path: str | None = option(None, "Pre-trained BERT: folder or Hub id.")
    train_file: list[str] | None = option(None, "Training rows: .csv .tsv .jsonl .parquet, also .gz .xz; globs.")
    dataset_name: str | None = option(None, "Hub dataset, in place of files.", not_with="train_file")
    dataset_config_name: str | None = option(
        None, "Configuration of the dataset.", only_with=("dataset_name", "task"), not_with="train_file", common=False
    )
    validation_file: list[str] | None = option(
        None, "Rows that choose the best weights. Default: split off.", only_with=("train_file", "dataset_name")
    )
    test_file: list[str] | None = option(
        None, "Rows of the reported metrics. Default: split off (texts and choices only)."
    )
    validation_split_percentage: float = option(
        10.0,
        "Validation rows that are split off, in %; near-duplicates stay together.",
        range="(0, 100)",
        not_with="validation_file",
    )
    test_split_percentage: float = option(
        20.0, "Test rows that are split off (texts and choices only), in %.", range="(0, 100)", not_with="test_file"
    )
    split_seed: int = option(
        0, "Random seed of the split, which runs with several values of --seed share.", range="[0, inf)"
    )
    max_seq_length: int = option(128, "Maximum tokens of a model input, [CLS] and [SEP] included.", range="[8, inf)")
    max_train_samples: int | None = option(
        None, "Use at most N training rows; --split_seed draws them.", range="[1, inf)"
    )
    max_eval_samples: int | None = option(None, "Use at most N validation and N test rows.", range="[1, inf)")
    tokenizer_name: str | None = option(None, "Tokenizer, if it is not the checkpoint's own.", common=False)
    do_lower_case: bool | None = option(None, READ_IN_LOWER_CASE, common=False)
    from_scratch: bool = option(False, "Train the checkpoint's architecture from random weights.")
    min_steps: int | None = option(
        None,
        f"Fewest optimizer steps, in whole epochs. Default: {MIN_STEPS} without --num_train_epochs.",
        range="[0, inf)",
        not_with="max_steps",
    )
    metric_name: list[str] | None = option(
        None, "Further metrics of the evaluate library: folder or script, or a Hub id, whose code is then run."
    )
    write_predictions: bool = option(False, "Write the predictions of test rows, else of validation rows.")
    language: str | None = option(None, "ISO 639 code, such as de, for the model card.")
    model_license: str | None = option(None, "Licence of the model, for the model card.", common=False)
    dataset_license: str | None = option(None, "Licence of the data, for the model card.", common=False)
    dataset_source: str | None = option(None, "Source of the data, for the model card.", common=False)

    def __post_init__(self):
        check_language(self.language)

    @property
    def validates_on_training_rows(self) -> bool:
        """Return True if training and validation use the same files or dataset; then nothing may be tuned on them."""
        rows: Any = self.dataset_name
        if isinstance(rows, Mapping):  # in memory, by part
            return rows["train"] is rows.get("validation")
        train = [os.path.realpath(path) for path in self.train_file or []]
        validation = [os.path.realpath(path) for path in self.validation_file or []]
        return bool(train) and train == validation

    def tokenizer_options(self) -> dict:
        """Return the arguments of `load_tokenizer`."""
        model = self.model_name_or_path
        return {"name_or_path": self.tokenizer_name or model, "model": model, "do_lower_case": self.do_lower_case}

    def files(self) -> dict[str, list[str]]:
        """Return the files of each part (`train`, `validation`, `test`) for which the options name any."""
        files_of_part = {"train": self.train_file, "validation": self.validation_file, "test": self.test_file}
        return {part: files for part, files in files_of_part.items() if files}


@dataclass
class ClassificationArguments(LabelledColumns, TaskArguments):
    """Classification."""

    task: str | None = option(None, "Known data set, e.g. mrpc (GLUE) or spam; an unknown name lists them all.")
    data_dir: str | None = option(None, "Folder with the benchmark's files.", only_with="task")
    long_texts: str = option(
        "head",
        "Part of longer texts that is read: head, head_tail, windows (everything).",
        ("head", "head_tail", "windows"),
    )
    class_names: list[str] | None = option(
        None,
        "Names of the labels 0, 1, … in their order, or the labels themselves: of two the second is positive.",
        not_with="problem_type=regression",
        common=False,
    )
    class_weight: str = option(
        "none",
        "balanced: each class counts alike in the training loss, as class_weight of scikit-learn.",
        ("none", "balanced"),
        not_with="problem_type=regression",
        common=False,
    )
    max_false_positive_rate: float | None = option(
        None,
        "Choose the threshold with at most this false-positive rate on validation rows.",
        range="(0, 1)",
        not_with="best_f1_threshold",
    )
    best_f1_threshold: bool = option(False, "Choose the threshold with the best F1 on validation rows.")


@dataclass
class TokenClassificationArguments(TaskArguments):
    """Token classification."""

    train_file: list[str] | None = option(None, "Training rows: .conll, or rows of words and tags: .jsonl .parquet.")
    text_column: str | None = option(None, "Column of the words: its name, or in CoNLL its number. Default: found.")
    label_column: str | None = option(None, "Column of the labels: its name, or in CoNLL its number. Default: found.")
    encoding: str | None = option(None, "Text encoding of the files (default: UTF-8).")
    write_predictions: bool = True
    document_context: bool = option(False, "Fill windows with neighbouring sentences, unlabelled (the paper, 5.3).")
    feature_based: str | None = option(
        None,
        "Train a BiLSTM on these hidden states of a frozen BERT (paper, table 7). Default: fine-tune BERT.",
        FEATURES,
        not_with="neftune_noise_alpha",
    )


@dataclass
class QuestionAnsweringArguments(TaskArguments):
    """Question answering: names and defaults of transformers' run_qa."""

    train_file: list[str] | None = option(
        None, "Training questions: SQuAD's JSON, or rows of it: .jsonl .parquet; also .gz .xz."
    )
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
        common=False,
    )
