"""A checkpoint in the form of sentence-transformers: a bare encoder whose tokenizer.json pads and cuts every text."""

import json
from random import Random

import pytest
import torch
import transformers
from datasets import Dataset
from tiny import tiny_config, tiny_tokenizer
from transformers import AutoTokenizer, BertModel

from bert_hf import FineTuner, FineTuningArguments

TEXTS = [" ".join(Random(number).choices([f"w{n}" for n in range(60)], k=4 + number % 9)) for number in range(40)]
ROWS = Dataset.from_dict({"text": TEXTS, "label": ["w1" in text for text in TEXTS]})


def save_encoder(folder, pads: bool) -> str:
    torch.manual_seed(0)
    BertModel(tiny_config()).save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    if pads:
        tokenizer.backend_tokenizer.enable_padding(length=24)
        tokenizer.backend_tokenizer.enable_truncation(8)
    tokenizer.save_pretrained(folder)
    if pads:
        (folder / "tokenizer.json").write_text(tokenizer.backend_tokenizer.to_str())
        (folder / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": ""}]))
    return str(folder)


def test_what_the_tokenizer_file_pads_and_cuts_changes_no_run(tmp_path):
    weights, finished = [], []
    for pads in (False, True):
        where = save_encoder(tmp_path / f"encoder-{pads}", pads)
        args = FineTuningArguments(str(tmp_path / f"run-{pads}"), max_steps=4, per_device_train_batch_size=8)
        parts = {"train_dataset": ROWS, "eval_dataset": ROWS}
        tuner = FineTuner(where, args, **parts, head="classification", max_seq_length=32)
        tuner.train()
        tuner.save_model()
        weights.append(tuner.model.state_dict())
        finished.append((tuner, args.output_dir))
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name

    tuner, folder = finished[1]
    ours = tuner.predict(TEXTS)
    stock = transformers.pipeline("text-classification", folder)(TEXTS, truncation=True)
    assert [row["label"] for row in ours] == [row["label"] for row in stock]
    assert [row["score"] for row in ours] == pytest.approx([row["score"] for row in stock], abs=1e-6)
    assert len(AutoTokenizer.from_pretrained(folder)(TEXTS[8]).input_ids) == 2 + 12
