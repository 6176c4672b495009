"""Options of the commands that use, export or convert a finished checkpoint."""

from dataclasses import dataclass

from bert_hf.config.arguments import READ_IN_LOWER_CASE
from bert_hf.config.options import option


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
