"""Shapes of networks, read from files."""

import json
from pathlib import Path

import pytest
from helpers.recipe_runs import recipe
from tiny import tiny_config, tiny_tokenizer

from bert_hf.data.text.tokenization import save_tokenizer
from bert_hf.errors import InputError
from bert_hf.models.config_file import config_from_json, config_of_checkpoint, read_checked_config

ROOT = Path(__file__).parents[2]
SHAPE = {"model_type": "bert", "vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.mark.parametrize("path", sorted((ROOT / "configs/model").glob("*.json")), ids=lambda path: path.stem)
def test_our_own_shapes_are_good(path):
    assert read_checked_config(path, 512).max_position_embeddings == 512


@pytest.mark.parametrize(
    "wrong",
    [
        {"is_decoder": 3}, {"id2label": [1]}, {"num_labels": "two"}, {"dtype": "float99"}, {"hidden_size": 0},
        {"hidden_size": 33}, {"hidden_dropout_prob": 1.5}, {"hidden_act": "gelo"}, {"vocab_sise": 100},
        {"position_embedding_type": "relative_key"},
    ],
    ids=json.dumps,
)  # fmt: skip
def test_a_wrong_value_is_one_line(tmp_path, wrong):
    path = tmp_path / "m.json"
    shape = SHAPE if "vocab_sise" not in wrong else {"hidden_size": 32}
    path.write_text(json.dumps({**shape, **wrong}, indent=1))
    for read in (read_checked_config, lambda path: config_from_json(str(path))):
        with pytest.raises(InputError, match=r"m\.json(:\d+)?: .*; correct the file$"):
            read(path)


def test_another_architecture_is_refused_by_the_check_and_by_the_run(tmp_path, capsys):
    """The weights of a RoBERTa would be read as none of BERT's; its positions begin at 2."""
    tiny_config().save_pretrained(tmp_path / "roberta")
    save_tokenizer(tiny_tokenizer(), tmp_path / "roberta")
    config = json.loads((tmp_path / "roberta/config.json").read_text())
    (tmp_path / "roberta/config.json").write_text(json.dumps({**config, "model_type": "roberta"}))
    rows = "".join(f"{'abcdefghij'[n % 10]}{'klmn'[n // 10]}\t{n % 2}\n" for n in range(40))
    (tmp_path / "rows.tsv").write_text(f"text\tlabel\n{rows}")

    words = ["--model_name_or_path", str(tmp_path / "roberta"), "--train_file", str(tmp_path / "rows.tsv")]
    words += ["--output_dir", str(tmp_path / "out"), "--max_seq_length", "32"]
    for more in (["--check", "true"], []):
        assert recipe("finetune_classification")([*words, *more]) == 2
        assert "model_type is 'roberta', not 'bert'" in capsys.readouterr().err
    with pytest.raises(InputError, match="model_type is 'roberta', not 'bert'"):
        config_of_checkpoint(str(tmp_path / "roberta"))


def test_a_checkpoint_with_relative_positions_is_refused(tmp_path):
    """transformers 5 ignores the entry, so the checkpoint would be another network."""
    config = tiny_config()
    config.position_embedding_type = "relative_key"
    config.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="position_embedding_type is 'relative_key', not 'absolute'"):
        config_of_checkpoint(str(tmp_path))
