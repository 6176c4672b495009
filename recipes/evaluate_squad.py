"""Compute SQuAD's official metrics of a prediction file: exact match, F1, best thresholds.

python recipes/evaluate_squad.py dev-v2.0.json predictions.json --na_prob_file null_odds.json
"""

import argparse
import json
import sys
from typing import NoReturn

from bert_hf.config.parser import expand_home
from bert_hf.errors import InputError, one_line_errors
from bert_hf.finetuning.metrics.squad import evaluate_files


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(message, where="command line", remedy="--help lists the arguments")


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser(description="Computes SQuAD's official metrics; JSON on stdout.", allow_abbrev=False)
    parser.add_argument("data", help="SQuAD's JSON (1.1 or 2.0) or JSON lines, also .gz or .xz")
    parser.add_argument("predictions", help="JSON object: question id to answer text, also .gz or .xz")
    parser.add_argument("--na_prob_file", help="JSON object: question id to the odds that it has no answer")
    parser.add_argument(
        "--na_prob_thresh", type=float, default=1.0, help='odds above it count as predicted "" (default: 1.0)'
    )
    return parser.parse_args([expand_home(word) for word in (sys.argv[1:] if argv is None else argv)])


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    metrics = evaluate_files(args.data, args.predictions, args.na_prob_file, args.na_prob_thresh)
    print(json.dumps(metrics, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
