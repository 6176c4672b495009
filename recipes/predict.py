"""Predict each row of files with a finished model; all columns of the rows pass through.

bert-hf predict runs/spam messages.csv --output predictions.csv
bert-hf predict runs/squad questions.json --output answers.jsonl
bert-hf predict runs/pretrain-default sentences.txt --output words.jsonl   (words for [MASK])
"""

import sys

from bert_hf.config.short_help import answer_at_once

answer_at_once(__name__)  # --help, before the imports below, which take seconds

from bert_hf.config.checkpoint_arguments import PredictionArguments
from bert_hf.config.parser import parse, with_flags
from bert_hf.console import logger
from bert_hf.errors import one_line_errors
from bert_hf.finetuning.predict import check_prediction, load_by_options, read_inputs, write_predictions


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    words = with_flags(sys.argv[1:] if argv is None else argv, "model_name_or_path", "test_file")
    required = ("model_name_or_path", "test_file", "output")
    (prediction_args,) = parse(
        (PredictionArguments,), words, check=check_prediction, dry_run=read_inputs, required=required
    )

    # 1. Model and tokenizer: the head decides what is predicted
    predictor = load_by_options(prediction_args)

    # 2. Rows → predictions → file, in windows
    rows = write_predictions(predictor, prediction_args)
    logger.info(f"predictions: {prediction_args.output}, {rows:,} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
