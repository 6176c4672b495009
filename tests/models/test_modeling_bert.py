import math

import pytest
import torch
import transformers
from helpers.batches import ragged_batch
from tiny import tiny_config
from transformers import pipeline

from bert_hf import BertForPreTraining

HEADS = (
    "AutoModel",
    "AutoModelForPreTraining",
    "AutoModelForMaskedLM",
    "AutoModelForNextSentencePrediction",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
    "AutoModelForQuestionAnswering",
    "AutoModelForMultipleChoice",
)


def randomised(model):
    """Every parameter random, biases and LayerNorm too, so that none can be left out unnoticed."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    return model.eval()


def batch(config):
    return {name: value for name, value in ragged_batch(config).items() if not name.endswith("_positions")}


def positions(labels):
    return (labels.flatten() != -100).nonzero().squeeze(1)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("direction", ["stock to ours", "ours to stock"])
def test_logits_and_loss_are_the_stock_model_s(config, attention, direction):
    config._attn_implementation = attention
    stock, ours = transformers.BertForPreTraining(config), BertForPreTraining(config)
    source, target = (stock, ours) if direction == "stock to ours" else (ours, stock)
    target.load_state_dict(randomised(source).state_dict(), strict=True)
    target.eval()
    inputs = batch(config)
    expected, got = stock(**inputs), ours(**inputs)
    assert type(got) is type(expected)
    assert list(got.keys()) == list(expected.keys())
    for name in ("prediction_logits", "seq_relationship_logits", "loss"):
        bound = 1e-5 * max(1.0, expected[name].abs().max().item())
        assert (got[name] - expected[name]).abs().max() <= bound, name


def test_keys_and_shapes_are_stock(config):
    expected = {name: value.shape for name, value in transformers.BertForPreTraining(config).state_dict().items()}
    assert {name: value.shape for name, value in BertForPreTraining(config).state_dict().items()} == expected


@pytest.mark.parametrize("name", HEADS)
def test_stock_classes_open_our_checkpoint_as_they_open_their_own(config, tmp_path, name):
    randomised(transformers.BertForPreTraining(config)).save_pretrained(tmp_path / "stock")
    randomised(BertForPreTraining(config)).save_pretrained(tmp_path / "ours")
    head = getattr(transformers, name)
    _, theirs = head.from_pretrained(tmp_path / "stock", output_loading_info=True)
    model, got = head.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert {key: set(value) for key, value in got.items()} == {key: set(value) for key, value in theirs.items()}
    assert type(model).__module__.startswith("transformers.")  # no code of ours
    assert "auto_map" not in (tmp_path / "ours/config.json").read_text()


def test_fill_mask_answers(config, tokenizer, tmp_path):
    BertForPreTraining(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    answer = pipeline("fill-mask", model=str(tmp_path))("w1 [MASK] w2")
    assert len(answer) == 5
    assert all(0 <= candidate["score"] <= 1 for candidate in answer)


def test_masked_only_head_gives_the_full_head_s_loss_and_gradients(config):
    model = randomised(BertForPreTraining(tiny_config(dropout=0.0)))
    inputs = batch(config)
    gradients = []
    for extra in ({}, {"masked_positions": positions(inputs["labels"])}):
        model.zero_grad()
        outputs = model(**inputs, **extra)
        outputs.loss.backward()
        gradients.append((outputs.loss.item(), {n: p.grad.clone() for n, p in model.named_parameters()}))
    (full_loss, full), (loss, masked) = gradients
    assert loss == pytest.approx(full_loss, rel=1e-6)
    for name in full:
        torch.testing.assert_close(masked[name], full[name], rtol=1e-4, atol=1e-6)


def test_only_masked_rows_enter_the_decoder(config):
    model, inputs, rows = BertForPreTraining(config), batch(config), []
    model.cls.predictions.decoder.register_forward_hook(lambda _, args, out: rows.append(args[0].shape[:-1].numel()))
    chosen = positions(inputs["labels"])
    logits = model(**inputs, masked_positions=chosen).prediction_logits
    assert rows == [len(chosen)]
    assert logits.shape == (len(chosen), config.vocab_size)
    model(**inputs)
    assert rows[1] == inputs["input_ids"].numel()


@pytest.mark.parametrize("kept", ["labels", "next_sentence_label"])
def test_one_kind_of_label_gives_its_loss_alone(config, kept):
    model, inputs = BertForPreTraining(config).eval(), batch(config)
    both = model(**inputs).loss
    dropped = {"labels": "next_sentence_label", "next_sentence_label": "labels"}[kept]
    other = model(**{k: v for k, v in inputs.items() if k != kept}).loss
    alone = model(**{k: v for k, v in inputs.items() if k != dropped}).loss
    assert (alone + other).item() == pytest.approx(both.item(), rel=1e-6)
    assert model(inputs["input_ids"]).loss is None


def test_nothing_masked_is_a_finite_loss(config):
    model, inputs = BertForPreTraining(config), batch(config)
    inputs["labels"] = torch.full_like(inputs["labels"], -100)
    for extra in ({}, {"masked_positions": positions(inputs["labels"])}):
        loss = model(**inputs, **extra).loss
        loss.backward()
        assert torch.isfinite(loss)
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_fresh_weights():
    model = BertForPreTraining(tiny_config(hidden_size=128, intermediate_size=512))
    weight = model.bert.encoder.layer[0].intermediate.dense.weight
    assert weight.std().item() == pytest.approx(0.02 * 0.8796, rel=0.03)  # a normal cut at 2 sigma is narrower
    assert weight.abs().max() <= 0.04
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    assert not model.cls.predictions.bias.any()


def test_gradient_checkpointing_changes_nothing(config):
    config = tiny_config(dropout=0.0)
    model, inputs = BertForPreTraining(config).train(), batch(config)
    model(**inputs).loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(**inputs).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name])


def test_hidden_states_and_attentions_can_be_asked_for(config):
    config._attn_implementation = "eager"
    outputs = BertForPreTraining(config)(**batch(config), output_hidden_states=True, output_attentions=True)
    assert len(outputs.hidden_states) == config.num_hidden_layers + 1
    assert outputs.attentions[0].shape == (6, config.num_attention_heads, 24, 24)


def test_a_decoder_is_refused():
    with pytest.raises(ValueError, match="encoder"):
        BertForPreTraining(tiny_config(is_decoder=True))


def test_sinusoidal_positions_are_those_of_vaswani_et_al():
    embeddings = BertForPreTraining(tiny_config(hidden_size=8, num_attention_heads=2)).bert.embeddings
    embeddings.set_sinusoidal_positions(std=0.02)
    table = embeddings.position_embeddings.weight / (0.02 * 3 * 2**0.5)

    for position, place in ((0, 0), (1, 2), (7, 4), (20, 6)):
        angle = position / 10000 ** (place / 8)
        assert table[position, place].item() == pytest.approx(math.sin(angle), abs=1e-6)
        assert table[position, place + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)
    assert embeddings.position_embeddings.weight.requires_grad
