"""Convert a checkpoint of google-research/bert (TensorFlow, 2018) to one that transformers loads.

bert-hf convert uncased_L-12_H-768_A-12 --output_dir runs/bert-base-uncased
bert-hf convert uncased_L-12_H-768_A-12/bert_model.ckpt --do_lower_case true --output_dir runs/bert-base

The folder holds bert_config.json, vocab.txt and one checkpoint (.index and .data files); of several, name the prefix.
"""

import sys

from bert_hf.config.short_help import answer_at_once

answer_at_once(__name__)  # --help, before the imports below, which take seconds

from transformers.utils import logging

from bert_hf.config.checkpoint_arguments import ConversionArguments
from bert_hf.config.files import check_writable
from bert_hf.config.parser import parse, with_flags
from bert_hf.data.text.tokenization import check_tokenizer, load_tokenizer, save_tokenizer
from bert_hf.errors import one_line_errors
from bert_hf.models.tf_checkpoint import convert_checkpoint, find_prefix, read_tf_config
from bert_hf.training.output_folder import claim_output_dir


def check_output(conversion_args: ConversionArguments) -> list[str]:
    return [check_writable(str(conversion_args.output_dir))]


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    words = with_flags(sys.argv[1:] if argv is None else argv, "tf_checkpoint", "tf_checkpoint")
    required = ["tf_checkpoint", "output_dir"]
    (conversion_args,) = parse((ConversionArguments,), words, check=check_output, required=required)
    logging.disable_progress_bar()
    prefix = find_prefix(str(conversion_args.tf_checkpoint))

    # 1. Tokenizer: with capitals and accents if the vocabulary has them
    vocabulary = prefix.parent / "vocab.txt"
    config = read_tf_config(prefix.parent / "bert_config.json")
    tokenizer = load_tokenizer(vocabulary, do_lower_case=conversion_args.do_lower_case)
    tokenizer.model_max_length = config.max_position_embeddings
    check_tokenizer(tokenizer, config.vocab_size, vocabulary)

    # 2. Network: the class of the heads that the checkpoint has
    model, left_out = convert_checkpoint(prefix, config)

    # 3. Folder, written when all was read
    folder = claim_output_dir(conversion_args.output_dir, overwrite=False, ours=("config.json",))
    model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    print(f"{type(model).__name__}: {folder}, {model.num_parameters():,} parameters")
    print(f"left out: {left_out:,} variables without a place in the network (of the optimizer, or of other heads)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
