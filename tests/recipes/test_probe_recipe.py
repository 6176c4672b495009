"""recipes/probe.py: all parts on a tiny checkpoint; a stock checkpoint and ours give the same figures."""

import json

import numpy as np
import pytest
import torch
from helpers.recipe_runs import recipe
from PIL import Image
from tiny import PIECES, tiny_config, tiny_tokenizer
from transformers import BertForPreTraining as StockBert
from transformers import BertModel

from bert_hf import BertForPreTraining
from bert_hf.analysis.probe.arguments import PARTS
from bert_hf.data.text.tokenization import save_tokenizer

QUICK = [
    "--max_seq_length", "32", "--labels", "10", "--folds", "3", "--random_draws", "2", "--tune_labels", "20",
    "--tune_draws", "2", "--tune_steps", "4", "--max_pairs", "3",
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Data of words that the tiny tokenizer knows, and a checkpoint saved by the stock class."""
    folder = tmp_path_factory.mktemp("probe")
    rng = np.random.default_rng(0)

    def sentence(length):
        return " ".join(rng.choice(PIECES[:60], length))

    # Words of letters, which the tokenizer does not know, keep the rows from being near-duplicates
    letters = ["".join(rng.choice(list("abcdefgh"), 5)) for _ in range(450)]
    rows = [f"{n % 2}\tw{10 + n % 2} {sentence(6)} {' '.join(letters[3 * n : 3 * n + 3])}\n" for n in range(150)]
    (folder / "rows.tsv").write_text("label\ttext\n" + "".join(rows))
    documents = ["\n".join(sentence(rng.integers(3, 9)) for _ in range(6)) for _ in range(80)]
    (folder / "text.txt").write_text("\n\n".join(documents))
    pairs = [
        {"sentence_good": sentence(5), "sentence_bad": sentence(5), "UID": f"u{n % 2}", "linguistics_term": "order"}
        for n in range(10)
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    torch.manual_seed(0)
    StockBert(tiny_config()).save_pretrained(folder / "stock")
    save_tokenizer(tiny_tokenizer(), folder / "stock")
    return folder


def probe(place, checkpoint, output, *words):
    data = ["--train_file", str(place / "rows.tsv"), "--validation_file", str(place / "text.txt")]
    data += ["--blimp", str(place / "pairs.jsonl"), "--cache_dir", str(place / "cache")]
    names = ["--model_name_or_path", str(place / checkpoint), "--output_dir", str(place / output)]
    code = recipe("probe")([*names, *data, *QUICK, *words])
    return code, json.loads((place / output / "probe.json").read_text()) if code == 0 else None


def metrics(found):
    return {part: found[part] for part in PARTS}


def test_all_parts_and_the_same_code_for_a_stock_checkpoint_and_ours(place, capsys):
    code, found = probe(place, "stock", "report")
    assert code == 0
    assert found["notes"] == []
    said = capsys.readouterr().out
    table = (place / "report/probe.txt").read_text()
    assert table in said
    for line in ("frozen features, rows", "fine-tuned on 20 rows", "words of B shuffled", "TF-IDF of characters"):
        assert line in table
    with Image.open(place / "report/probe.png") as picture:
        assert picture.size[0] > 1000

    torch.manual_seed(1)
    ours = BertForPreTraining.from_pretrained(place / "stock")
    ours.save_pretrained(place / "ours")
    save_tokenizer(tiny_tokenizer(), place / "ours")
    assert metrics(probe(place, "ours", "ours-report")[1]) == metrics(found)


def test_a_checkpoint_without_heads_is_probed_in_the_other_parts(place):
    torch.manual_seed(2)
    BertModel(tiny_config(), add_pooling_layer=False).save_pretrained(place / "bare")
    save_tokenizer(tiny_tokenizer(), place / "bare")
    code, found = probe(place, "bare", "bare-report", "--parts", "vocabulary", "mlm", "nsp", "grammar")
    assert code == 0
    assert found["notes"] == [
        "mlm: the checkpoint has no masked-language-model head",
        "nsp: the checkpoint has no next-sentence head",
        "grammar: the checkpoint has no masked-language-model head",
    ]
    assert "bert.pooler.dense.weight" in found["lacking"]
    assert list(found["vocabulary"]) == ["rows"]


def test_an_earlier_report_is_kept_unless_it_may_be_replaced(place, capsys):
    words = ("stock", "kept", "--parts", "vocabulary")
    assert probe(place, *words)[0] == 0
    assert probe(place, *words)[0] == 2
    assert "--overwrite_output_dir" in capsys.readouterr().err
    assert probe(place, *words, "--overwrite_output_dir", "true")[0] == 0
