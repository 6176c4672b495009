"""Compare checkpoints by fine-tuning: every model on every fold, with several seeds and numbers of training rows.

bert-hf split --train_file messages.csv --folds 5 --output_dir runs/folds
bert-hf study --models mini=runs/mini random=runs/mini:from_scratch --folds_dir runs/folds --output_dir runs/study
bert-hf study --models a=runs/a b=runs/b --train_file rows.csv --train_sizes 50 500 all --output_dir runs/study

All other options are passed to the fine-tuning recipe.
"""

import sys

from bert_hf.config.short_help import answer_at_once

answer_at_once(__name__)  # --help, before the imports below, which take seconds

from transformers.utils import logging

from bert_hf.analysis.study import Study, split_argv
from bert_hf.config.checkpoint_arguments import StudyArguments
from bert_hf.config.parser import parse
from bert_hf.training.command import command


@command
def main(argv: list[str] | None = None) -> int:
    argv, recipe_argv = split_argv(sys.argv[1:] if argv is None else argv)
    study_args: StudyArguments
    (study_args,) = parse((StudyArguments,), argv)

    # 1. Cells: models × training sizes × folds × seeds, each a run of the recipe in this process
    study = Study(study_args, recipe_argv)

    # 2. Each with its own log.txt; then study.csv, study.md and learning_curve.png
    logging.set_verbosity_error()  # each cell would report which layers are new
    logging.disable_progress_bar()
    return study.check() if study_args.check else study.run()


if __name__ == "__main__":
    sys.exit(main())
