"""Extract features: the hidden states of a BERT for texts, one vector a text or a token, in Parquet files.

python recipes/extract_features.py --model_name_or_path runs/pretrain-default --train_file texts.txt \
    --layers -1 -2 --pooling mean --output_dir runs/features
"""

import sys
from pathlib import Path

from transformers.utils import logging

from bert_hf.analysis.features.arguments import FeatureArguments, check_features
from bert_hf.analysis.features.extraction import open_extractor
from bert_hf.analysis.features.feature_files import open_folder, summary, write_features
from bert_hf.analysis.features.texts import checksum, read_all
from bert_hf.config.arguments import OutputArguments, parse
from bert_hf.errors import one_line_errors
from bert_hf.training.output_folder import release_lock, require_output_dir


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    options = parse((FeatureArguments, OutputArguments), argv, preflight=check_features)
    if options is None:  # --check
        return 0
    feature_args, output_args = options
    logging.set_verbosity_error()  # the heads of the checkpoint are not read, and that is no fault
    logging.disable_progress_bar()

    # 1. Checkpoint and tokenizer, through stock transformers
    extractor, settings = open_extractor(feature_args)

    # 2. The folder: a new one, or one in which the same features were begun
    output_settings = {"columns": feature_args.columns()._asdict(), "texts_per_file": feature_args.texts_per_file}
    identity = {**settings, "texts": checksum(feature_args.train_file), **output_settings}
    folder = open_folder(Path(require_output_dir(output_args.output_dir)), identity, output_args.overwrite_output_dir)

    # 3. Texts → hidden states → files
    if folder.finished:
        print(f"{folder.path} holds these features, already complete")
    else:
        texts = read_all(feature_args.train_file, feature_args.columns())
        write_features(folder, extractor, texts, feature_args.texts_per_file, feature_args.dtype, print)
    release_lock()

    # 4. Report
    print(*summary(folder), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
