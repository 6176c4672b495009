"""Evaluate a fine-tuned model: its metrics on labelled rows.

bert-hf evaluate runs/spam --test_file messages.csv
bert-hf evaluate runs/squad --test_file dev-v1.1.json
bert-hf evaluate runs/ner --test_file test.conll --output_dir runs/ner-test
"""

import json
import sys
from pathlib import Path
from typing import Any

from bert_hf.config.short_help import answer_at_once

answer_at_once(__name__)  # --help, before the imports below, which take seconds

from bert_hf.config.checkpoint_arguments import EvaluationArguments
from bert_hf.config.files import write_durably
from bert_hf.config.parser import parse, with_flags
from bert_hf.console import logger
from bert_hf.errors import one_line_errors
from bert_hf.finetuning.heads.head import rows_of_files
from bert_hf.finetuning.metrics.classification import metric_title
from bert_hf.finetuning.metrics.evaluated import load_metrics
from bert_hf.finetuning.predict import check_files, load_by_options, read_inputs


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    words = with_flags(sys.argv[1:] if argv is None else argv, "model_name_or_path", "test_file")
    required = ("model_name_or_path", "test_file")
    check: Any = check_files
    (evaluation_args,) = parse((EvaluationArguments,), words, check=check, dry_run=read_inputs, required=required)

    # 1. Model and tokenizer: the head decides what is measured
    predictor = load_by_options(evaluation_args)

    # 2. Rows → predictions → metrics
    further = load_metrics(evaluation_args.metric_name or [], predictor.head.metric_config())
    rows = rows_of_files(predictor.head, evaluation_args.test_file or [], evaluation_args.encoding)
    metrics, table = predictor.evaluate(list(rows), further)
    print(table)
    classes = predictor.head.labels if predictor.head.pipeline_tag == "text-classification" else ()
    for name, value in metrics.items():
        title = metric_title(name, classes)  # F1 of entities is of no class
        print(f"{title.ljust(28)}{value:12.4f}")
    metrics = {f"test_{name}": float(value) for name, value in metrics.items()}
    if evaluation_args.output_dir is not None:
        folder = Path(evaluation_args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        write_durably(folder / "test_results.json", json.dumps(metrics, indent=4) + "\n")
        logger.info(f"metrics: {folder / 'test_results.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
