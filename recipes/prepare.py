"""Prepare raw text: a tokenized corpus on disk, for any number of runs.

bert-hf prepare --tokenizer_name runs/tokenizer --train_file 'corpus/*.txt' --output_dir runs/corpus
bert-hf prepare --check --train_file 'corpus/*.txt'
bert-hf prepare --train_file 'corpus/*.txt' --deduplicate true --num_proc 8 --output_dir runs/corpus

Each input file becomes a shard, or several of 64 M tokens. After an interruption the same command continues with the
next shard. With `--shard i/n` it makes one of n parts, on any machine that sees the text, and the part that ends last
completes the folder.
"""

import sys
import time

from bert_hf.config.short_help import answer_at_once

answer_at_once(__name__)  # --help, before the imports below, which take seconds

from bert_hf.config.arguments import (
    ExampleArguments,
    OutputArguments,
    PrepareArguments,
    TextArguments,
    TokenizerArguments,
)
from bert_hf.config.parser import parse
from bert_hf.data.corpus.prepare import OWNED, prepare
from bert_hf.data.corpus.report import report_lines
from bert_hf.data.corpus.requested_corpus import (
    check_preparing,
    load_or_train_tokenizer,
    sentence_language,
    text_sources,
)
from bert_hf.data.text.deduplication import find_duplicates
from bert_hf.errors import one_line_errors
from bert_hf.training.command import next_command
from bert_hf.training.output_folder import claim_output_dir

PREPARING_ARGUMENTS = (TokenizerArguments, TextArguments, ExampleArguments, PrepareArguments, OutputArguments)


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    options = parse(PREPARING_ARGUMENTS, argv, check=check_preparing)
    tokenizer_args, text_args, example_args, prepare_args, output_args = options
    part = prepare_args.shard_numbers()
    if prepare_args.check:
        # Only a report on the text, no corpus
        print(*report_lines(tokenizer_args, text_args, example_args), sep="\n", flush=True)
        return 0
    folder = claim_output_dir(output_args.output_dir, overwrite=False, ours=OWNED, resumable=True)

    # 1. Tokenizer: the named one, or one trained on the text
    tokenizer = load_or_train_tokenizer(tokenizer_args, text_args)

    # 2. Duplicates, if they are to be left out
    begin = time.perf_counter()
    inputs = text_sources(text_args, text_args.train_file)
    left_out = None
    if prepare_args.deduplicate:
        left_out, documents = find_duplicates(inputs, text_args.num_proc)
        print(f"left out: {sum(map(len, left_out.values())):,} of {documents:,} documents", flush=True)

    # 3. Documents → sentences → ids; another corpus that is overwritten stays until here
    corpus = prepare(
        inputs,
        tokenizer,
        folder,
        language=sentence_language(text_args),
        num_proc=text_args.num_proc,
        shard=part,
        without=left_out,
        options={"deduplicate": "exact"} if prepare_args.deduplicate else None,
        text_language=text_args.language,
        overwrite=output_args.overwrite_output_dir,
    )
    seconds = time.perf_counter() - begin

    # 4. Report
    if corpus is None:
        print(f"part {prepare_args.shard} is done in {seconds:.1f} s; the last part to finish completes {folder}")
        return 0
    manifest = corpus.manifest
    size = sum(shard["bytes"] for shard in manifest["shards"])
    print(f"{manifest['documents']:,} documents ({manifest['one_sentence_documents']:,} of one sentence), "
          f"{manifest['sentences']:,} sentences, {manifest['tokens']:,} tokens in {seconds:.1f} s")  # fmt: skip
    print(f"{size / manifest['tokens']:.2f} bytes per token, unknown tokens {manifest['unknown_share']:.4%}")
    print("next:", next_command("pretrain", "--config", "bert-mini-cpu", "--train_file", folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
