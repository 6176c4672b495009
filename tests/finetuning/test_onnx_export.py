"""Exported networks against the original ones; needs the extra `onnx`, so these are skipped where it is missing."""

import importlib.util
import json

import numpy as np
import pytest
import torch
from helpers.recipe_runs import recipe
from tiny import tiny_tokenizer
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)

from bert_hf.finetuning import onnx_export
from bert_hf.training import command

HEADS = [
    BertForSequenceClassification,
    BertForTokenClassification,
    BertForQuestionAnswering,
    BertForMultipleChoice,
    BertForMaskedLM,
]
MISSING = importlib.util.find_spec("onnxruntime") is None
needs_onnx = pytest.mark.skipif(MISSING, reason="the extra `onnx` is not installed")


@pytest.fixture
def checkpoint(tmp_path):
    def make(head):
        tokenizer = tiny_tokenizer()
        config = BertConfig(
            vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=64, max_position_embeddings=512,
        )  # fmt: skip
        torch.manual_seed(0)
        model = head(config)
        for weight in model.parameters():  # biases and norms, too
            torch.nn.init.normal_(weight, 0, 0.3)
        folder = tmp_path / head.__name__
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make


@pytest.mark.slow
@needs_onnx
@pytest.mark.parametrize("head", HEADS)
def test_an_exported_network_computes_the_same_logits(head, checkpoint, tmp_path):
    folder = checkpoint(head)
    assert recipe("export")([str(folder), "--output_dir", str(tmp_path / "onnx")]) == 0
    assert json.loads((tmp_path / "onnx/sentence_bert_config.json").read_text())["max_seq_length"] == 512
    model = head.from_pretrained(folder).eval()
    exported = onnx_export.open_onnx(tmp_path / "onnx/model.onnx")

    random = np.random.default_rng(0)
    lengths = [1, 2, 511, 512, *random.integers(1, 513, 196).tolist()]
    batches = [lengths[:1], lengths[1:2], lengths[2:3], *(lengths[start : start + 32] for start in range(3, 200, 32))]
    for batch in batches:
        shape = (len(batch), 2) if head is BertForMultipleChoice else (len(batch),)
        ids = torch.from_numpy(random.integers(0, model.config.vocab_size, (*shape, max(batch))))
        mask = (torch.arange(max(batch)) < torch.tensor(batch)[:, None]).long()
        mask = mask[:, None].repeat(1, 2, 1) if len(shape) == 2 else mask
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % 2}
        with torch.inference_mode():
            expected = dict(model(**inputs))
        computed = exported(inputs)
        assert computed.keys() == expected.keys()
        for name, own in expected.items():
            torch.testing.assert_close(computed[name], own, rtol=0, atol=1e-5 * max(1, float(own.abs().max())))


@pytest.mark.slow
@needs_onnx
def test_a_network_that_computes_something_else_is_not_kept(checkpoint, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(onnx_export, "largest_difference", lambda *_: (0.5, 1.0))
    folder = checkpoint(BertForSequenceClassification)
    assert recipe("export")([str(folder), "--output_dir", str(tmp_path / "onnx")]) == 2
    assert "differ by 5.0e-01" in capsys.readouterr().err
    assert not (tmp_path / "onnx").exists()
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_a_model_without_a_head_is_refused(checkpoint, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda name: name)
    assert recipe("export")([str(checkpoint(BertModel)), "--output_dir", str(tmp_path / "onnx")]) == 2
    assert "BertModel" in capsys.readouterr().err
