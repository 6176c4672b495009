"""Predict: what a finished model says about each row of files, with all columns of the rows.

bert-hf predict runs/spam messages.csv --output predictions.csv
python recipes/predict.py --model_name_or_path runs/spam --test_file messages.csv --output predictions.csv
"""

import sys

from bert_hf.config.short_help import answer_at_once

if __name__ == "__main__":
    answer_at_once(__file__)  # --help or a mistyped option: before the imports below, which take seconds

from bert_hf.config.checkpoint_arguments import PredictionArguments
from bert_hf.config.parser import parse, with_flags
from bert_hf.console import logger
from bert_hf.errors import one_line_errors
from bert_hf.finetuning.prediction_files import check_prediction, load, read_inputs, write_predictions


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    words = with_flags(sys.argv[1:] if argv is None else argv, "model_name_or_path", "test_file")
    required = ("model_name_or_path", "test_file", "output")
    options = parse((PredictionArguments,), words, check=check_prediction, dry_run=read_inputs, required=required)
    if options is None:  # --check
        return 0
    (prediction_args,) = options

    # 1. Model and tokenizer: the head decides what is predicted
    predictor = load(prediction_args)

    # 2. Rows → predictions → file, in windows
    rows = write_predictions(predictor, prediction_args)
    logger.info(f"predictions: {prediction_args.output}, {rows:,} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
