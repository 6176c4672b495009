"""Options of estimate and of commands for finished checkpoints; a class's docstring is its heading in `--help`."""

from dataclasses import dataclass

from bert_hf.config.arguments import READ_IN_LOWER_CASE
from bert_hf.config.options import option
from bert_hf.errors import InputError


@dataclass
class PredictorArguments:
    """Model and rows."""

    model_name_or_path: str | None = option(
        None, "Model, as the first word: fine-tuned, or pre-trained for [MASK]; folder or Hub id."
    )
    test_file: list[str] | None = option(
        None, "Rows, as the further words: .txt .csv .tsv .jsonl .parquet, SQuAD's JSON, .conll."
    )
    text_column: str | None = option(None, "Column of the text. Default: as in training, or a usual name.")
    text_pair_column: str | None = option(None, "Column of the second text of a pair.")
    long_texts: str | None = option(
        None,
        "Part of longer texts that is read: head, head_tail, windows. Default: as in training.",
        ("head", "head_tail", "windows"),
    )
    encoding: str | None = option(None, "Text encoding of the files (default: UTF-8).")
    separator: str | None = option(None, "Between fields: `tab` or a character. Default: found in each .csv and .tsv.")
    bf16: bool | None = option(None, "Compute in bf16. Default: on a GPU that multiplies in it; false for fp32.")


@dataclass
class PredictionArguments(PredictorArguments):
    """Output."""

    output: str | None = option(None, "File of the predictions: .jsonl or .csv; every input column passes through.")


@dataclass
class EvaluationArguments(PredictorArguments):
    """Evaluation."""

    output_dir: str | None = option(None, "Folder for test_results.json; without it the metrics are only printed.")
    label_column: str | None = option(None, "Column of the label. Default: as in training, or a usual name.")
    class_names: list[str] | None = option(
        None, "Names of the model's classes by their numbers, where it calls them LABEL_0, LABEL_1, …", common=False
    )
    metric_name: list[str] | None = option(
        None, "Further metrics of the evaluate library: folder or script, or a Hub id, whose code is then run."
    )


@dataclass
class DemoArguments:
    """Demo."""

    model_name_or_path: str | None = option(None, "Finished model, as the first word: folder or Hub id.")
    host: str = option("127.0.0.1", "Address to serve at; 0.0.0.0: other machines reach it, too.")


@dataclass
class ExportArguments:
    """Export."""

    model_name_or_path: str | None = option(None, "Finished model, as the first word: folder or Hub id.")
    output_dir: str | None = option(None, "Folder for model.onnx, tokenizer and labels, new or empty.")
    format: str = option("onnx", "Format of the exported network.", ("onnx",))


@dataclass
class ConversionArguments:
    """Conversion."""

    tf_checkpoint: str | None = option(
        None, "Folder of a TensorFlow checkpoint, or its prefix (bert_model.ckpt), as the first word."
    )
    output_dir: str | None = option(None, "Folder to write to, new or empty.")
    do_lower_case: bool | None = option(None, READ_IN_LOWER_CASE)


@dataclass
class FeatureArguments:
    """Features."""

    model_name_or_path: str | None = option(None, "Checkpoint (folder or Hub id).")
    train_file: list[str] | None = option(
        None, "Texts: .txt (a line is a text, or a pair as `A ||| B`), or rows of .jsonl .csv .tsv .parquet."
    )
    text_column: str | None = option(None, "Column of the text. Default: a usual name, such as text.")
    layers: list[int] | None = option(None, "0: embeddings, 1, 2, …: layers, -1: the last one. Default: -1.")
    pooling: str | None = option(
        None, "One vector per text (mean, cls) or token (none). Default: its own, or mean.", ("none", "cls", "mean")
    )
    do_lower_case: bool | None = option(None, READ_IN_LOWER_CASE, common=False)
    max_seq_length: int = option(
        128, "Maximum tokens of a text or a pair, [CLS] and [SEP] included; longer ones are cut.", range="[8, inf)"
    )
    per_device_eval_batch_size: int = option(32, "Texts per batch.", range="[1, inf)")


@dataclass
class ProbeArguments:
    """Probe."""

    model_name_or_path: str | None = option(None, "Checkpoint (folder or Hub id).")
    validation_file: list[str] | None = option(
        None, "Held-out text, or a folder of `bert-hf prepare`: for masked words and next sentences."
    )
    blimp: list[str] | None = option(
        None, "Minimal pairs, for grammar: JSON lines with sentence_good and sentence_bad (BLiMP)."
    )
    do_lower_case: bool | None = option(None, READ_IN_LOWER_CASE, common=False)
    max_seq_length: int = option(128, "Maximum tokens of a text; longer ones are cut.", range="[8, inf)")
    max_eval_samples: int = option(1000, "Maximum number of held-out examples.", range="[1, inf)")
    max_pairs: int = option(10, "Maximum number of minimal pairs per paradigm.", range="[1, inf)")

    def __post_init__(self):
        if not self.validation_file and not self.blimp:
            raise InputError("nothing to probe", where="probe", remedy="give --validation_file or --blimp")


@dataclass
class StudyArguments:
    """Study."""

    models: list[str] | None = option(
        None,
        "NAME=PATH or NAME=PATH:from_scratch (its shape with random weights), …; {fold} in a path is the fold's "
        "number. 'NAME=PATH --OPTION VALUE' adds options for this model.",
    )
    recipe: str = option("finetune_classification", "The fine-tuning recipe.")
    folds_dir: str | None = option(
        None,
        "Folder of `bert-hf split`: fold-N/{train,validation,test}.jsonl. Without it the recipe's options name data.",
    )
    seeds: list[int] | None = option(None, "Seeds; one run each. Default: 1 2 3.")
    train_sizes: list[str] | None = option(None, "Numbers of training rows, such as 50 500 all. Default: all.")
    metrics: list[str] | None = option(None, "Metrics to compare, such as f1. Default: the first two of the task.")
    reference: str | None = option(
        None, "Model or baseline that the others are compared with. Default: the first model with random weights."
    )
    check: bool = option(False, "Only check the options and the files that the cells would read.")
    output_dir: str = option("runs/study", "Folder for study.csv, study.md and learning_curve.png.")


@dataclass
class EstimateArguments:
    """Estimate."""

    device: str = option(
        "h200", "h200, h100, a100-80gb, a100-40gb, l40s, l4, v100-32gb, rtx4090, or cpu (this machine)."
    )
    num_devices: list[int] | None = option(
        None, "Number of devices; several numbers give one row each.", range="[1, inf)"
    )
    global_batch: int = option(256, "Sequences per optimizer step, over all devices (A.2: 256).", range="[1, inf)")
    mfu: float | None = option(
        None,
        "Fraction of the device's peak FLOP/s that is reached (docs/speed.md). Default: by hidden size.",
        range="(0, 1]",
    )

    def __post_init__(self):
        if self.num_devices is None:
            self.num_devices = [1] if self.device == "cpu" else [1, 8, 64, 512]
