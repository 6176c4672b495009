"""Prepares a corpus in parts under datatrove: two here, or as many as a Slurm cluster runs.

    pip install datatrove
    python recipes/train_tokenizer.py --train_file 'corpus/*.txt' --output_dir runs/tokenizer
    python launch/prepare_with_datatrove.py runs/tokenizer runs/corpus corpus/*.txt

The folder is, byte for byte, the one that recipes/prepare.py makes of the same files in one process. Finished shards
are not made again: after a failure the same command resumes, and whichever part ends last completes the folder.
"""

import sys

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep


class Prepare(PipelineStep):
    """Part `rank` of `world_size`: every `world_size`-th file becomes a shard of the folder."""

    type, name = "bert_hf", "prepare"

    def __init__(self, tokenizer: str, folder: str, files: list[str], language: str = "en"):
        super().__init__()
        self.tokenizer, self.folder, self.files, self.language = tokenizer, folder, files, language

    def run(self, data=None, rank: int = 0, world_size: int = 1) -> None:
        from bert_hf.data.corpus.prepare import prepare  # here: only the workers need it
        from bert_hf.data.text.sources import TextFile
        from bert_hf.data.text.tokenization import load_tokenizer

        inputs = [TextFile(file) for file in self.files]
        tokenizer = load_tokenizer(self.tokenizer)
        prepare(inputs, tokenizer, self.folder, language=self.language, shard=(rank, world_size))


def main(tokenizer: str, folder: str, *files: str) -> None:
    step = Prepare(tokenizer, folder, list(files))
    # On a cluster: from datatrove.executor.slurm import SlurmPipelineExecutor
    # SlurmPipelineExecutor([step], tasks=1000, time="04:00:00", partition="cpu", logging_dir=…, skip_completed=False)
    logs = f"{folder.rstrip('/')}-logs"
    LocalPipelineExecutor([step], tasks=2, workers=2, logging_dir=logs, skip_completed=False).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
