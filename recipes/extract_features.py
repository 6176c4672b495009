"""Extract features: the hidden states of a BERT for texts, one vector per text or token, in a Parquet file.

bert-hf features --model_name_or_path runs/pretrain-default --train_file texts.txt --output_dir runs/features
bert-hf features --model_name_or_path runs/mini --train_file rows.csv --layers -1 -2 --output_dir runs/features
bert-hf features --model_name_or_path runs/mini --train_file texts.txt --pooling none --output_dir runs/features
"""

import sys

from bert_hf.config.short_help import answer_at_once

answer_at_once(__name__)  # --help, before the imports below, which take seconds

from bert_hf.analysis.features import FEATURES_FILE, open_extractor, read_texts_or_pairs, write_features
from bert_hf.config.arguments import OutputArguments
from bert_hf.config.checkpoint_arguments import FeatureArguments
from bert_hf.config.parser import parse
from bert_hf.console import progress
from bert_hf.errors import one_line_errors
from bert_hf.training.output_folder import claim_output_dir

REQUIRED = ("model_name_or_path", "train_file", "output_dir")


def check(feature_args: FeatureArguments, output_args: OutputArguments):
    """Read every row: an error in the last one would otherwise end the run after hours."""
    yield f"texts: {sum(1 for _ in read_texts_or_pairs(feature_args)):,}"


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    feature_args, output_args = parse((FeatureArguments, OutputArguments), argv, check=check, required=REQUIRED)
    overwrite = output_args.overwrite_output_dir
    folder = claim_output_dir(output_args.output_dir, overwrite=False, ours=(FEATURES_FILE,), resumable=overwrite)

    # 1. Checkpoint and tokenizer, through stock transformers
    extractor = open_extractor(feature_args)

    # 2. Texts → hidden states → one file, which replaces an earlier one when it is complete
    read = progress(read_texts_or_pairs(feature_args), "features", "texts")
    texts = write_features(folder, extractor, read)
    print(f"features: {folder / FEATURES_FILE}, {texts:,} texts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
