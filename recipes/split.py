"""Split labelled rows into folds of training, validation and test rows, near-duplicates in the same part.

bert-hf split --train_file messages.csv --output_dir runs/folds
bert-hf split --train_file messages.csv --folds 1 --test_split_percentage 30 --output_dir runs/split
bert-hf split --train_file pairs.tsv --text_pair_column second --output_dir runs/folds

Writes fold-0/{train,validation,test}.jsonl and so on; the classes have the same shares in all parts.
"""

import sys

from bert_hf.config.short_help import answer_at_once

answer_at_once(__name__)  # --help, before the imports below, which take seconds

from bert_hf.config.arguments import OutputArguments
from bert_hf.config.finetuning_arguments import SplitArguments
from bert_hf.config.parser import parse
from bert_hf.errors import one_line_errors
from bert_hf.finetuning.rows.near_duplicates import near_duplicate_groups
from bert_hf.finetuning.rows.splits import make_folds, read_inputs, read_rows_to_split, write_folds


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    required = ("train_file", "output_dir")
    split_args, output_args = parse((SplitArguments, OutputArguments), argv, dry_run=read_inputs, required=required)

    # 1. Rows: text, second text if there is one, and class
    rows = read_rows_to_split(split_args)

    # 2. Folds: stratified by class, groups of near-duplicates in the same part
    groups = near_duplicate_groups(rows.joined())
    made = make_folds(rows, groups, split_args)

    # 3. Files
    write_folds(output_args.output_dir, made, split_args, overwrite=output_args.overwrite_output_dir)

    # 4. Report
    print(rows.describe(split_args.problem_type))
    print(f"near-duplicates: {len(rows) - len(set(groups)):,} rows are like another one")
    sizes = ", ".join(f"{name} {len(own):,} rows" for name, own in made[0].items())
    print(f"folds: {len(made)} in {output_args.output_dir}, such as {sizes}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
