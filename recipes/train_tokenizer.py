"""Train a WordPiece vocabulary on raw text.

bert-hf tokenizer --train_file 'corpus/*.txt' --output_dir runs/tokenizer
bert-hf tokenizer --train_file 'corpus/*.txt' --vocab_size 8192 --output_dir runs/tokenizer
bert-hf tokenizer --train_file 'corpus/*.txt' --do_lower_case false --language de --output_dir runs/tokenizer
"""

import sys
import time

from bert_hf.config.short_help import answer_at_once

answer_at_once(__name__)  # --help, before the imports below, which take seconds

import numpy as np
from transformers import AutoTokenizer

from bert_hf.config.arguments import OutputArguments, TextArguments, TokenizerArguments
from bert_hf.config.parser import parse
from bert_hf.data.corpus.requested_corpus import check_preparing, sample_inputs, text_sources
from bert_hf.data.text.encoding import encode_sentences
from bert_hf.data.text.tokenization import TOKENIZER_FILES, backend, save_tokenizer, train_tokenizer
from bert_hf.errors import InputError, one_line_errors
from bert_hf.training.command import next_command
from bert_hf.training.output_folder import claim_output_dir


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    options = parse((TokenizerArguments, TextArguments, OutputArguments), argv, check=check_preparing)
    tokenizer_args, text_args, output_args = options
    overwrite = output_args.overwrite_output_dir
    folder = claim_output_dir(output_args.output_dir, overwrite=False, ours=TOKENIZER_FILES, resumable=overwrite)

    # 1. A bounded sample of the documents, spread evenly over all of them
    pieces = sample_inputs(text_sources(text_args, text_args.train_file))
    texts = [piece.text for piece in pieces]

    # 2. Train
    begin = time.perf_counter()
    tokenizer = train_tokenizer(texts, **tokenizer_args.vocabulary_options())
    seconds = time.perf_counter() - begin

    # 3. Save, and check that the saved tokenizer gives the same ids on the whole sample
    claim_output_dir(str(folder), overwrite, ours=TOKENIZER_FILES)  # one that is overwritten stays until here
    save_tokenizer(tokenizer, folder)
    trained, loaded = backend(tokenizer), backend(AutoTokenizer.from_pretrained(folder))
    total = unknown = 0
    for document in texts:
        ids, _ = encode_sentences(trained, document.splitlines())
        if not np.array_equal(ids, encode_sentences(loaded, document.splitlines())[0]):
            remedy = "report this: it is a bug of bert_hf"
            raise InputError("the reloaded tokenizer produces different ids", where=folder, remedy=remedy)
        total += len(ids)
        unknown += int((ids == tokenizer.unk_token_id).sum())

    # 4. Report
    print(f"{len(tokenizer):,} pieces from {sum(map(len, texts)):,} characters in {seconds:.1f} s")
    print(f"unknown tokens: {unknown:,} of {total:,} ({unknown / max(1, total):.4%})")
    print(f"example: {' '.join(tokenizer.tokenize(texts[0][:120]))}")
    words = ["--tokenizer_name", folder, *text_args.non_default_flags(), "--output_dir", "runs/corpus"]
    files = ["--train_file", *text_args.train_file] if text_args.train_file else []
    print("next:", next_command("prepare", *files, *words))
    return 0


if __name__ == "__main__":
    sys.exit(main())
