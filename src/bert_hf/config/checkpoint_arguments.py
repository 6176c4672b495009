"""Options of the commands that use, export or convert a finished checkpoint."""

from dataclasses import dataclass

from bert_hf.config.options import option


@dataclass
class PredictorArguments:
    """Which finished model reads which rows: options of `predict.py` and `evaluate.py`."""

    model_name_or_path: str | None = option(None, "Model (folder or Hub id): fine-tuned, or pre-trained for [MASK].")
    test_file: list[str] | None = option(None, "Rows: .txt .csv .tsv .jsonl .parquet, SQuAD's JSON, .conll.")
    text_column: str | None = option(None, "Column of the text. Default: that of the training, or a usual name.")
    text_pair_column: str | None = option(None, "Column of the second text of a pair.")
    long_texts: str | None = option(
        None, "Part of a longer text that is read. Default: as in training.", ("head", "head_tail", "windows")
    )
    encoding: str | None = option(None, "Encoding of the files, if it is not UTF-8: latin-1, cp1252, …")


@dataclass
class PredictionArguments(PredictorArguments):
    """Options of `predict.py`."""

    output: str | None = option(None, "File of the predictions: .jsonl, .csv or .parquet; it is replaced.")


@dataclass
class EvaluationArguments(PredictorArguments):
    """Options of `evaluate.py`."""

    output_dir: str | None = option(None, "Folder for test_results.json; without it the metrics are only printed.")
    label_column: str | None = option(None, "Column of the label. Default: that of the training, or a usual name.")


@dataclass
class ExportArguments:
    """What is exported."""

    model_name_or_path: str | None = option(None, "Folder or Hub id of a finished model.")
    output_dir: str | None = option(None, "Folder to write to, new or empty.")
    format: str = option("onnx", "Format of the exported network.", choices=("onnx",))
    quantize: str | None = option(None, "dynamic: matrices in 8 bits, for a CPU.", choices=("dynamic",))
    validation_file: list[str] | None = option(
        None, "Rows on which the quantized labels are compared with the original's.", only_with="quantize"
    )


@dataclass
class ConversionArguments:
    """What is converted."""

    tf_checkpoint: str | None = option(None, "Folder of a TensorFlow checkpoint, or its prefix (bert_model.ckpt).")
    output_dir: str | None = option(None, "Folder to write to, new or empty.")
    gelu: str = option(
        "erf",
        "Activation: erf, as published conversions; tanh, as the code of 2018.",
        choices=("erf", "tanh"),
    )
