"""Features equal the hidden states of stock `AutoModel` on each text alone, however the texts share batches."""

import numpy as np
import pytest
import torch
from tiny import PIECES, tiny_config, tiny_tokenizer
from transformers import AutoModel, AutoTokenizer, BertForPreTraining

from bert_hf.analysis.features import extraction
from bert_hf.analysis.features.arguments import POOLINGS, FeatureArguments, chosen_layers
from bert_hf.analysis.features.extraction import open_extractor, pool
from bert_hf.analysis.features.texts import Text
from bert_hf.data.text.tokenization import save_tokenizer
from bert_hf.errors import InputError

LENGTH = 24


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A stock checkpoint of three layers, every parameter random."""
    folder = tmp_path_factory.mktemp("features") / "bert"
    torch.manual_seed(0)
    model = BertForPreTraining(tiny_config(num_hidden_layers=3))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    save_tokenizer(tiny_tokenizer(), folder)
    return folder


@pytest.fixture
def texts(rng):
    """Texts and pairs of 0 to 40 words, of which the longest are cut."""
    words = [" ".join(rng.choice(PIECES[:60], count)) for count in rng.integers(0, 40, 60)]
    words[36] = ""
    return [Text(words[n], words[n + 30] if n % 3 == 0 else None) for n in range(30)]


def extractor(checkpoint, **options):
    defaults = {"model_name_or_path": str(checkpoint), "max_seq_length": LENGTH, "per_device_eval_batch_size": 7}
    return open_extractor(FeatureArguments(**{**defaults, **options}))[0]


POOLED = {
    "none": lambda states: states,
    "cls": lambda states: states[:1],
    "mean": lambda states: states.mean(0, keepdim=True),
    "max": lambda states: states.max(0, keepdim=True).values,
}


@pytest.mark.parametrize("pooling", POOLINGS)
def test_features_equal_the_stock_states_of_each_text_alone(checkpoint, texts, pooling):
    chunks = list(extractor(checkpoint, layers=[-1, 0, 2], pooling=pooling).chunks(texts))
    found = [np.concatenate([chunk.features[k] for chunk in chunks]) for k in range(3)]

    model, tokenizer = AutoModel.from_pretrained(checkpoint).eval(), AutoTokenizer.from_pretrained(checkpoint)
    expected = [[], [], []]
    for text in texts:
        inputs = tokenizer(text.text, text.pair, truncation=True, max_length=LENGTH, return_tensors="pt")
        with torch.no_grad():
            states = model(**inputs, output_hidden_states=True).hidden_states
        for k, layer in enumerate((-1, 0, 2)):
            expected[k].append(POOLED[pooling](states[layer][0]).numpy())

    for k in range(3):
        np.testing.assert_allclose(found[k], np.concatenate(expected[k]), rtol=0, atol=1e-5)


def test_the_embeddings_alone(checkpoint, texts):
    [chunk] = extractor(checkpoint, layers=[0], pooling="none").chunks(texts[1:2])
    model, tokenizer = AutoModel.from_pretrained(checkpoint).eval(), AutoTokenizer.from_pretrained(checkpoint)
    inputs = tokenizer(texts[1].text, truncation=True, max_length=LENGTH, return_tensors="pt")
    expected = model(**inputs, output_hidden_states=True).hidden_states[0][0].detach()
    np.testing.assert_allclose(chunk.features[0], expected, rtol=0, atol=1e-6)


def test_pooling_of_a_literal_batch():
    states = torch.tensor([[[1.0, -1.0], [2.0, -2.0], [6.0, -6.0], [9.0, 9.0]], [[5.0, 0.0]] * 4])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    assert pool(states, mask, "cls").tolist() == [[[1.0, -1.0]], [[5.0, 0.0]]]
    assert pool(states, mask, "mean").tolist() == [[[3.0, -3.0]], [[5.0, 0.0]]]
    assert pool(states, mask, "max").tolist() == [[[6.0, -1.0]], [[5.0, 0.0]]]
    assert pool(states, mask, "none") is states


def test_chunks_keep_the_order_and_are_bounded(checkpoint, texts, monkeypatch):
    whole = [chunk.features[0] for chunk in extractor(checkpoint).chunks(texts)]
    assert len(whole) == 1

    monkeypatch.setattr(extraction, "_TEXTS", 8)
    monkeypatch.setattr(extraction, "_ENCODED", 3)
    chunks = list(extractor(checkpoint).chunks(texts))
    assert [len(chunk.texts) for chunk in chunks] == [8, 8, 8, 6]
    np.testing.assert_allclose(np.concatenate([c.features[0] for c in chunks]), whole[0], rtol=0, atol=1e-5)

    monkeypatch.setattr(extraction, "_BYTES", 4 * 32 * 40)  # 40 tokens of one layer
    chunks = list(extractor(checkpoint, pooling="none").chunks(texts))
    assert max(len(chunk.features[0]) for chunk in chunks) <= 40
    assert sum(len(chunk.texts) for chunk in chunks) == len(texts)


def test_no_text_is_read_before_it_is_needed(checkpoint, texts, monkeypatch):
    monkeypatch.setattr(extraction, "_TEXTS", 4)
    monkeypatch.setattr(extraction, "_ENCODED", 2)
    read = []

    def source():
        for text in texts:
            read.append(text)
            yield text

    chunks = extractor(checkpoint).chunks(source())
    next(chunks)
    assert len(read) == 6  # the chunk, and the group of texts that ends it


def test_layers_above_the_highest_are_not_computed(checkpoint):
    assert len(extractor(checkpoint, layers=[1]).model.encoder.layer) == 1


def test_chosen_layers():
    assert chosen_layers([-1, -4, 0, 11], 12) == [12, 9, 0, 11]
    assert chosen_layers([-13], 12) == [0]


@pytest.mark.parametrize(
    ("layers", "line"),
    [
        ([13], "--layers: no layer 13 in a network of 12; give numbers from -13 to 12"),
        ([-14], "--layers: no layer -14 in a network of 12; give numbers from -13 to 12"),
        ([-1, 12], "--layers: layer 12 is named twice; name each layer once"),
    ],
)
def test_layers_that_do_not_exist(layers, line):
    with pytest.raises(InputError) as error:
        chosen_layers(layers, 12)
    assert str(error.value) == line
