"""The probe against literal examples and plain loops over the stock model; all parts on a tiny checkpoint."""

import json

import numpy as np
import pytest
import torch
from helpers.corpora import Texts
from helpers.recipe_runs import recipe
from tiny import PIECES, save_tiny_bert, tiny_config, tiny_tokenizer
from torch import nn
from transformers import BertForPreTraining as StockBert
from transformers import BertModel

from bert_hf import BertForPreTraining
from bert_hf.analysis.probe_language import (
    Example,
    HeldOutText,
    mask_each_position,
    masked_lm,
    minimal_pairs,
    next_sentence,
    outputs_of,
    pseudo_log_likelihoods,
    read_held_out,
    read_minimal_pairs,
)
from bert_hf.data.corpus.prepare import prepare
from bert_hf.data.examples.collator import DataCollatorForPreTraining
from bert_hf.data.examples.dataset import PreTrainingExamples
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


# ---- grammar


def test_masked_copies_of_words_in_pieces():
    continues = np.zeros(30, bool)
    continues[[11, 12]] = True
    copies = mask_each_position([CLS, 10, 11, 12, 20, SEP], continues, MASK)
    assert [(each.input_ids.tolist(), each.labels.argmax()) for each in copies] == [
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
    assert minimal_pairs(pairs, model, tokenizer)["accuracy"] == 0.5


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


# ---- held-out text


def masked_example(tokenizer, words_a, words_b, predicted) -> Example:
    a, b = (tokenizer.convert_tokens_to_ids(words) for words in (words_a, words_b))
    ids = np.array([CLS, *a, SEP, *b, SEP])
    labels = np.full(len(ids), -100)
    labels[predicted] = ids[predicted]
    masked = ids.copy()
    masked[predicted] = MASK
    return Example(masked, np.array([0] * (len(a) + 2) + [1] * (len(b) + 1)), labels, 0)


def random_text(tokenizer, count=40) -> HeldOutText:
    rng = np.random.default_rng(0)
    examples, counts = [], np.zeros(len(tokenizer), np.int64)
    for number in range(count):
        a, b = ([f"w{i}" for i in rng.integers(0, 60, rng.integers(4, 9))] for _ in range(2))
        example = masked_example(tokenizer, a, [*b, "##x1"], [1, len(a) + 3])
        examples.append(example._replace(next_sentence_label=number % 2))
        counts += np.bincount(np.where(example.labels >= 0, example.labels, example.input_ids), minlength=len(counts))
    return HeldOutText(examples, counts, True)


def test_losses_equal_those_of_the_stock_model(model, tokenizer):
    text = random_text(tokenizer)
    outputs = outputs_of(model, text.examples, tokenizer)
    expected = []
    for row, example in enumerate(text.examples):
        segments = torch.tensor(example.token_type_ids)[None]
        output = model(torch.tensor(example.input_ids)[None], token_type_ids=segments)
        chances = output.prediction_logits[0].log_softmax(-1)
        expected += [-chances[n, example.labels[n]].item() for n in np.flatnonzero(example.labels >= 0)]
        logits = output.seq_relationship_logits[0]
        assert outputs.next_sentence[row] == pytest.approx((logits[0] - logits[1]).item(), abs=1e-4)

    assert sorted(outputs.losses) == pytest.approx(sorted(expected), abs=1e-4)
    found = masked_lm(text, outputs)
    assert found["loss"] == pytest.approx(np.mean(expected), abs=1e-5)
    shares = (text.counts + 1) / (text.counts + 1).sum()
    assert found["unigram_loss"] == pytest.approx(-np.log(shares[outputs.targets]).mean())


def test_next_sentence_by_hand(model, tokenizer):
    text = random_text(tokenizer, 4)  # labels 0 1 0 1
    outputs = outputs_of(model, text.examples, tokenizer)
    found = next_sentence(text, outputs._replace(next_sentence=np.array([1.0, 1.0, 1.0, -1.0])))
    assert (found["pairs"], found["majority"], found["accuracy"]) == (4, 0.5, 0.75)


def test_held_out_examples_are_those_of_pretraining(tokenizer, documents, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "text.txt").write_text("\n\n".join(documents).replace("Document", "w1"))
    held_out = read_held_out([str(tmp_path / "text.txt")], tokenizer, 32, 1000)

    corpus = prepare([Texts(tuple((tmp_path / "text.txt").read_text().split("\n\n")))], tokenizer, tmp_path / "corpus")
    examples = PreTrainingExamples(corpus, seed=0, fixed=True)
    examples.phases = (examples.phases[0]._replace(max_seq_length=32),)
    batch = DataCollatorForPreTraining(tokenizer)([examples[index] for index in range(len(examples))])
    assert held_out.pairs
    assert len(held_out.examples) == len(examples)
    for row, example in enumerate(held_out.examples):
        for name in ("input_ids", "token_type_ids", "labels"):
            assert batch[name][row, : len(example.input_ids)].tolist() == getattr(example, name).tolist()
    assert [one.next_sentence_label for one in held_out.examples] == batch["next_sentence_label"].tolist()
    assert held_out.counts.sum() == corpus.tokens


# ---- the recipe


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
