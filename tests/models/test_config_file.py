"""Shapes of networks, read from files."""

import json
from pathlib import Path

import pytest

from bert_hf.errors import InputError
from bert_hf.models.config_file import config_from_json, read_checked_config

ROOT = Path(__file__).parents[2]
SHAPE = {"model_type": "bert", "vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.mark.parametrize("path", sorted((ROOT / "configs/model").glob("*.json")), ids=lambda path: path.stem)
def test_our_own_shapes_are_good(path):
    assert read_checked_config(path, 512).max_position_embeddings == 512


def test_another_architecture_may_be_tuned(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SHAPE, "model_type": "roberta"}))
    assert read_checked_config(path, bert_alone=False) is None
    with pytest.raises(InputError, match=r"config\.json(:1)?: model_type is 'roberta', not 'bert'"):
        read_checked_config(path)


@pytest.mark.parametrize("wrong", [{"is_decoder": 3}, {"id2label": [1]}, {"num_labels": "two"}, {"dtype": "float99"}])
def test_a_value_of_another_type_is_one_line(tmp_path, wrong):
    path = tmp_path / "m.json"
    path.write_text(json.dumps({**SHAPE, **wrong}))
    for read in (read_checked_config, lambda path: config_from_json(str(path))):
        with pytest.raises(InputError, match=r"m\.json: not a BERT's configuration: .*; correct the file$"):
            read(path)
