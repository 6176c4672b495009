"""Exports a finished model to ONNX, and compares the exported network with the original before anything is kept."""

import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bert_hf.config.checkpoint_arguments import ExportArguments
from bert_hf.config.files import check_writable
from bert_hf.data.text.tokenization import save_tokenizer
from bert_hf.errors import InputError
from bert_hf.finetuning.run import write_input_length
from bert_hf.training.command import check_installed

ONNX = "model.onnx"
_TOLERANCE = 1e-5  # times max(1, max|logit|)


def check_export(export_args: ExportArguments) -> Iterator[str]:
    """Check the installed packages and the output folder; yield a line for `--check`."""
    check_installed("onnx", "onnx", "onnxscript", "onnxruntime")
    yield check_writable(str(export_args.output_dir))


def export_onnx(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, length: int) -> float:
    """Write `model.onnx`, the tokenizer and config.json (labels, threshold) into a folder, after comparing the logits.

    The inputs are (batch, tokens), or (batch, choices, tokens) of a model for multiple choice, of any size up to
    `length` tokens. Returns the largest difference of a logit; one of more than 1e-5 · max(1, max|logit|) is an error.
    """
    if type(model).__name__ == "BiLstmTagger":  # its inputs are hidden states, no tokens
        problem = "a tagger on frozen features cannot be exported"
        raise InputError(problem, where=model.name_or_path, remedy="give a fine-tuned BERT")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary:
        unchecked = Path(temporary)
        _write_onnx(model, unchecked / ONNX, length)
        difference, largest_logit = largest_difference(model, unchecked / ONNX, length)
        if difference > _TOLERANCE * max(1, largest_logit):
            problem = f"the exported logits differ by {difference:.1e}"
            raise InputError(problem, remedy="install the versions of constraints.txt")

        model.config.save_pretrained(unchecked)
        save_tokenizer(tokenizer, unchecked)
        write_input_length(unchecked, length)
        folder.mkdir(exist_ok=True)
        for file in unchecked.iterdir():
            shutil.move(file, folder / file.name)
    return difference


def _write_onnx(model: PreTrainedModel, path: Path, length: int) -> None:
    """Export a model by tracing it on random inputs; batch, choices and length remain free."""
    inputs = _random_inputs(model, 2, min(8, length))
    sizes: dict[int, Any] = {0: torch.export.Dim("batch")}  # by axis: those that remain free
    if inputs["input_ids"].dim() == 3:
        sizes[1] = torch.export.Dim("choices")
    sizes[len(sizes)] = torch.export.Dim("length", max=length)  # of the last axis
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of packages that BERT does not need
    with warnings.catch_warnings(action="ignore"), torch.inference_mode():
        shapes = dict.fromkeys(inputs, sizes)
        names: dict[str, Any] = {"input_names": list(inputs), "output_names": list(model(**inputs))}
        program = torch.onnx.export(model, kwargs=inputs, dynamic_shapes=shapes, dynamo=True, verbose=False, **names)
    assert program is not None
    program.save(path)


def _random_inputs(model: PreTrainedModel, batch: int, length: int) -> dict[str, Tensor]:
    """Return inputs of random tokens and segments, of different lengths; three choices for multiple choice."""
    shape = (batch, 3, length) if type(model).__name__.endswith("ForMultipleChoice") else (batch, length)
    random = torch.Generator().manual_seed(batch * 1000 + length)
    ids = torch.randint(model.config.vocab_size, shape, generator=random)
    ends = torch.randint(1, length + 1, shape[:-1], generator=random)
    mask = (torch.arange(length) < ends[..., None]).long()
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": (ids + ends[..., None]) % 2 * mask}


def largest_difference(model: PreTrainedModel, path: Path, length: int) -> tuple[float, float]:
    """Return (largest difference of a logit, largest logit) over batches of 1 to 32 inputs, short and long."""
    exported = open_onnx(path)
    difference = largest = 0.0
    for batch, tokens in ((1, 1), (1, length), (32, min(length, 64)), (2, length)):
        inputs = _random_inputs(model, batch, tokens)
        with torch.inference_mode():
            expected = dict(model(**inputs))
        for name, output in exported(inputs).items():
            difference = max(difference, float((expected[name] - output).abs().max()))
            largest = max(largest, float(expected[name].abs().max()))
    return difference, largest


def open_onnx(path: Path) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """Return an exported network as a function from a batch to its outputs by name (ONNX Runtime on the CPU)."""
    import onnxruntime  # pyright: ignore[reportMissingImports] - an extra

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    input_names = [each.name for each in session.get_inputs()]
    output_names = [each.name for each in session.get_outputs()]

    def forward(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        outputs = session.run(output_names, {name: batch[name].numpy(force=True) for name in input_names})
        return dict(zip(output_names, map(torch.from_numpy, outputs), strict=True))

    return forward
