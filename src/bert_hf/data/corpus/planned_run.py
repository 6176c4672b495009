"""Reports what the planned steps of a run mean for its corpus, its memory and its disk."""

from dataclasses import dataclass

from bert_hf.config.hardware import free_disk
from bert_hf.data.corpus.finding import Finding
from bert_hf.data.corpus.store import Corpus, Window
from bert_hf.data.examples.dataset import PreTrainingExamples

_BYTES_A_PARAMETER = 16  # fp32 weight, gradient and both moments of Adam
SAVED_A_PARAMETER = 12  # bytes: fp32 weight and both moments of Adam
_MAX_PASSES = 40  # of the paper: 1,000,000 steps of 256 sequences


@dataclass(frozen=True)
class PlannedRun:
    """The run that a corpus is meant for."""

    steps: int
    batch: int  # sequences of the global batch
    parameters: int
    checkpoints: int  # that are kept
    folder: str
    device_bytes: int  # memory of each device


def planned_findings(
    corpus: Corpus, window: Window, examples: PreTrainingExamples, planned: PlannedRun
) -> list[Finding]:
    """Passes over the corpus, memory and disk.

    Args:
        window: the first one of the corpus; its number of examples is taken for all.
    """
    return [_passes(corpus, window, examples, planned), _memory(planned), _disk(planned)]


def _passes(corpus: Corpus, window: Window, examples: PreTrainingExamples, planned: PlannedRun) -> Finding:
    length = examples.window_length(0, 0, 0) or 0
    epoch = length * corpus.tokens / max(1, window.sizes.sum())
    passes = planned.steps * planned.batch / epoch
    text = f"{planned.steps:,} steps of {planned.batch:,} sequences are {passes:.2f} passes over the corpus"
    remedy = f"get more text, or plan fewer steps (the paper: {_MAX_PASSES} passes)"
    return Finding(text, remedy if passes > _MAX_PASSES else "")


def _memory(planned: PlannedRun) -> Finding:
    need = planned.parameters * _BYTES_A_PARAMETER
    text = (
        f"weights, gradients and Adam's moments take {_gigabytes(need)}, and activations come on top; the memory is "
        f"{_gigabytes(planned.device_bytes)}"
    )
    return Finding(text, "shard: configs/accelerate/zero3.yaml" if need > 0.8 * planned.device_bytes else "")


def _disk(planned: PlannedRun) -> Finding:
    need = planned.parameters * SAVED_A_PARAMETER * (planned.checkpoints + 1)
    free = free_disk(planned.folder)
    text = (
        f"{planned.checkpoints} checkpoints and the one being written take {_gigabytes(need)} of the disk's "
        f"{_gigabytes(free)} free"
    )
    return Finding(text, "lower --save_total_limit, or write elsewhere" if need > 0.9 * free else "")


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.2f} GB"
