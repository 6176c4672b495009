"""Shapes of networks, read from files."""

import json
from pathlib import Path

import pytest
from tiny import tiny_config

from bert_hf.errors import InputError
from bert_hf.models.loading import config_from_json, config_of_checkpoint

ROOT = Path(__file__).parents[2]
SHAPE = {"model_type": "bert", "vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.mark.parametrize("path", sorted((ROOT / "configs/model").glob("*.json")), ids=lambda path: path.stem)
def test_our_own_shapes_are_good(path):
    assert config_from_json(str(path)).max_position_embeddings == 512


@pytest.mark.parametrize(
    "wrong",
    [
        {"is_decoder": 3}, {"id2label": [1]}, {"num_labels": "two"}, {"dtype": "float99"}, {"hidden_size": 0},
        {"hidden_size": 33}, {"vocab_sise": 100},
        {"position_embedding_type": "relative_key"},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_a_wrong_value_is_one_line(tmp_path, wrong):
    path = tmp_path / "m.json"
    shape = SHAPE if "vocab_sise" not in wrong else {"hidden_size": 32}
    path.write_text(json.dumps({**shape, **wrong}, indent=1))
    with pytest.raises(InputError, match=r"m\.json(:\d+)?: .*; fix the file$"):
        config_from_json(str(path))


def test_a_checkpoint_with_relative_positions_is_refused(tmp_path):
    """transformers 5 ignores the entry, so the checkpoint would be another network."""
    config = tiny_config()
    config.position_embedding_type = "relative_key"
    config.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="position_embedding_type is 'relative_key', not 'absolute'"):
        config_of_checkpoint(str(tmp_path))
