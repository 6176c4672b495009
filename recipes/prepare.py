"""Raw text → a tokenized corpus on disk, ready for any number of runs.

python recipes/prepare.py --tokenizer_name runs/tokenizer --train_file 'corpus/*.txt' --output_dir runs/corpus
"""

import sys
import time

from bert_hf.arguments import CorpusArguments, FolderArguments, TokenizerArguments, parse
from bert_hf.corpus import MANIFEST, documents_of, prepare, tokenizer_for
from bert_hf.errors import one_line_errors
from bert_hf.run import free_folder


@one_line_errors
def main(argv: list[str] | None = None) -> int:
    tokens, text, out = parse((TokenizerArguments, CorpusArguments, FolderArguments), argv)
    folder = free_folder(out.output_dir, out.overwrite_output_dir, ours=MANIFEST)

    # 1. Tokenizer: the named one, or one trained on the text
    tokenizer = tokenizer_for(tokens, text)

    # 2. Documents → sentences → ids
    documents, made_from = documents_of(text, text.train_file)
    begin = time.perf_counter()
    corpus = prepare(
        documents(), tokenizer, folder, language=text.language or "en", num_proc=text.num_proc, made_from=made_from
    )
    seconds = time.perf_counter() - begin

    # 3. Report
    manifest = corpus.manifest
    size = sum(shard["bytes"] for shard in manifest["shards"])
    print(f"{manifest['documents']:,} documents ({manifest['one_sentence_documents']:,} of one sentence), "
          f"{manifest['sentences']:,} sentences, {manifest['tokens']:,} tokens in {seconds:.1f} s")  # fmt: skip
    print(f"{size / manifest['tokens']:.2f} bytes a token, unknown tokens {manifest['unknown_share']:.4%}")
    launch = "accelerate launch recipes/pretrain.py --config configs/pretrain/bert-mini-cpu.yaml"
    print(f"next: {launch} --train_file {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
