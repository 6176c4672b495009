"""The probe against literal examples and plain loops over the stock model; all parts on a tiny checkpoint."""

import itertools
import json

import numpy as np
import pytest
import torch
from helpers.recipe_runs import recipe
from tiny import PIECES, save_tiny_bert, tiny_config, tiny_tokenizer
from torch import nn
from transformers import BertForPreTraining as StockBert
from transformers import BertModel

from bert_hf import BertForPreTraining
from bert_hf.analysis.probe import grammar_accuracy, mask_each_position, pseudo_log_likelihoods, read_minimal_pairs
from bert_hf.data.text.tokenization import save_tokenizer
from bert_hf.errors import InputError

CLS, SEP, MASK = 2, 3, 4


@pytest.fixture
def model():
    """A stock model of which every parameter is random."""
    torch.manual_seed(0)
    model = StockBert(tiny_config(dropout=0.0)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, 1.0, 0.3)
    return model


def test_masked_copies_of_words_in_pieces():
    continues = np.zeros(30, bool)
    continues[[11, 12]] = True
    copies = mask_each_position([CLS, 10, 11, 12, 20, SEP], continues, MASK)
    assert list(copies) == [
        ([CLS, MASK, MASK, MASK, 20, SEP], 1),
        ([CLS, 10, MASK, MASK, 20, SEP], 2),
        ([CLS, 10, 11, MASK, 20, SEP], 3),
        ([CLS, 10, 11, 12, MASK, SEP], 4),
    ]


def test_pseudo_log_likelihoods_equal_a_plain_loop_over_the_stock_model(model, tokenizer):
    sentences = ["w1x2x3 w4", "w9 w8 w7 w6 w5", "w3"]
    expected = []
    for sentence in sentences:
        ids = tokenizer(sentence)["input_ids"]
        pieces = tokenizer.convert_ids_to_tokens(ids)
        total = 0.0
        for position in range(1, len(ids) - 1):
            masked = list(ids)
            masked[position] = tokenizer.mask_token_id
            for later in range(position + 1, len(ids)):
                if not pieces[later].startswith("##"):
                    break
                masked[later] = tokenizer.mask_token_id
            with torch.no_grad():
                logits = model(torch.tensor([masked])).prediction_logits[0, position]
            total += logits.log_softmax(-1)[ids[position]].item()
        expected.append(total)
    assert pseudo_log_likelihoods(model, sentences, tokenizer) == pytest.approx(expected, abs=1e-4)


def test_the_likelier_sentence_of_a_pair_wins_and_a_tie_counts_as_wrong(model, tokenizer):
    sentences = ["w1x2x3 w4", "w9 w8"]
    better, worse = sorted(sentences, key=lambda one: -pseudo_log_likelihoods(model, [one], tokenizer)[0])
    pairs = [(better, worse), (worse, better), (better, better), (better, worse)]
    assert grammar_accuracy(pairs, model, tokenizer)["accuracy"] == 0.5


def test_minimal_pairs_are_sampled_by_paradigm(tmp_path):
    line = '{{"sentence_good": "g{0}", "sentence_bad": "b{0}", "UID": "{1}"}}\n'
    (tmp_path / "b.jsonl").write_text("".join(line.format(n, "many" if n < 30 else "few") for n in range(33)))
    found = read_minimal_pairs([str(tmp_path / "*.jsonl")], 5)
    assert [good for good, _ in found[:3]] == ["g30", "g31", "g32"]  # the paradigm "few", and five of "many"
    assert len(found) == 8
    assert found == read_minimal_pairs([str(tmp_path / "b.jsonl")], 5)
    assert [good for good, _ in found[3:]] != [f"g{n}" for n in range(5)]

    (tmp_path / "bad.jsonl").write_text('{"sentence_good": "x"}\n')
    with pytest.raises(InputError, match=r"bad.jsonl:1"):
        read_minimal_pairs([str(tmp_path / "bad.jsonl")], 5)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Data of words that the tiny tokenizer knows, and a checkpoint saved by the stock class."""
    folder = tmp_path_factory.mktemp("probe")
    rng = np.random.default_rng(0)

    def sentence(length):
        return " ".join(rng.choice(PIECES[:60], length))

    documents = ["\n".join(sentence(rng.integers(3, 9)) for _ in range(6)) for _ in range(80)]
    (folder / "text.txt").write_text("\n\n".join(documents))
    pairs = [{"sentence_good": sentence(5), "sentence_bad": sentence(5), "UID": f"u{n % 2}"} for n in range(10)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    save_tiny_bert(folder / "stock")
    return folder


def probe(place, checkpoint, output, *words):
    data = ["--validation_file", str(place / "text.txt"), "--blimp", str(place / "pairs.jsonl")]
    data += ["--max_seq_length", "32"]
    names = ["--model_name_or_path", str(place / checkpoint), "--output_dir", str(place / output)]
    code = recipe("probe")([*names, *data, *words])
    return code, json.loads((place / output / "probe.json").read_text()) if code == 0 else None


def test_all_parts_are_the_same_for_a_stock_checkpoint_and_ours(place, capsys):
    code, found = probe(place, "stock", "report")
    assert code == 0
    assert found["notes"] == []
    assert found.keys() == {"checkpoint", "notes", "mlm", "nsp", "grammar"}
    words = ["--model_name_or_path", str(place / "stock"), "--validation_file", str(place / "text.txt"), "--do_eval"]
    words += ["--max_seq_length", "32", "--max_eval_samples", "1000", "--output_dir", str(place / "evaluated")]
    assert recipe("pretrain")([*words, "--bf16", "false"]) == 0
    evaluated = json.loads((place / "evaluated/eval_results.json").read_text())
    for part, metric in itertools.product(("mlm", "nsp"), ("loss", "accuracy")):
        if metric in found[part]:
            assert found[part][metric] == pytest.approx(evaluated[f"eval_{part}_{metric}"], rel=1e-5)
    table = (place / "report/probe.txt").read_text()
    assert table in capsys.readouterr().out

    ours = BertForPreTraining.from_pretrained(place / "stock")
    ours.save_pretrained(place / "ours")
    save_tokenizer(tiny_tokenizer(), place / "ours")
    again = probe(place, "ours", "ours-report")[1]
    assert {**again, "checkpoint": found["checkpoint"]} == found


def test_a_checkpoint_without_heads_is_probed_in_the_other_parts(place):
    BertModel(tiny_config(), add_pooling_layer=False).save_pretrained(place / "bare")
    save_tokenizer(tiny_tokenizer(), place / "bare")
    code, found = probe(place, "bare", "bare-report")
    assert code == 0
    assert [note.partition(":")[0] for note in found["notes"]] == ["mlm, grammar", "nsp"]


def test_an_earlier_report_is_kept_unless_it_may_be_replaced(place, capsys):
    words = ("stock", "kept", "--max_eval_samples", "50")
    assert probe(place, *words)[0] == 0
    assert probe(place, *words)[0] == 2
    assert "--overwrite_output_dir" in capsys.readouterr().err
    assert probe(place, *words, "--overwrite_output_dir", "true")[0] == 0
