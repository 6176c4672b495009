"""The encoder without padding: outputs and gradients of the stock models, in which it takes the encoder's place."""

import contextlib
import copy

import pytest
import torch
import transformers
from torch import nn

from bert_hf.models.unpadded_encoder import UnpaddedBertModel, without_padding

HEADS = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")


def make_model(head: str, **options):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=16, num_labels=2, **options,
    )  # fmt: skip
    return getattr(transformers, f"BertFor{head}")(config)


@pytest.fixture
def padding():
    """Holds the context managers of a test until its end."""
    with contextlib.ExitStack() as stack:
        yield stack


def make_batch(head: str, lengths=(9, 3, 12, 12, 1, 5), **changes) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 50, (len(lengths), 12), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(12) < torch.tensor(lengths)[:, None]).long()
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": (ids > 25).long(), **changes}
    return {name: x.view(3, 2, -1) for name, x in inputs.items()} if head == "MultipleChoice" else inputs


def real_outputs(model, inputs) -> list[torch.Tensor]:
    mask = inputs["attention_mask"].bool()
    return [x[mask] if x.shape[:2] == mask.shape else x for x in model(**inputs).values()]


@pytest.mark.parametrize("head", HEADS)
def test_outputs_and_gradients_are_those_of_the_stock_model(padding, head):
    stock = make_model(head)
    ours = copy.deepcopy(stock)
    state = torch.get_rng_state()
    padding.enter_context(without_padding(ours))
    assert type(ours.bert) is UnpaddedBertModel
    assert torch.equal(torch.get_rng_state(), state)
    assert list(ours.state_dict()) == list(stock.state_dict())

    inputs = make_batch(head)
    expected, outputs = real_outputs(stock, inputs), real_outputs(ours, inputs)
    for one, other in zip(outputs, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)

    for model_outputs in (expected, outputs):
        sum((x**2).sum() for x in model_outputs).backward()
    for (name, one), other in zip(ours.named_parameters(), stock.parameters(), strict=True):
        if other.grad is None:
            assert one.grad is None, name
        else:
            torch.testing.assert_close(
                one.grad, other.grad, rtol=1e-4, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}"
            )


@pytest.mark.parametrize("head", HEADS)
def test_what_it_saves_is_the_stock_model(padding, head, tmp_path):
    ours = make_model(head)
    ours.bert.embeddings.requires_grad_(False)
    parameters = list(ours.parameters())
    trained = [parameter.requires_grad for parameter in parameters]
    padding.enter_context(without_padding(ours))
    assert [parameter.requires_grad for parameter in ours.parameters()] == trained
    assert all(one is other for one, other in zip(ours.parameters(), parameters, strict=True))
    ours.save_pretrained(tmp_path)
    loaded = type(ours).from_pretrained(tmp_path)
    assert type(loaded.bert) is transformers.BertModel
    for name, weights in loaded.state_dict().items():
        assert torch.equal(weights, ours.state_dict()[name]), name


@pytest.mark.parametrize("case", ["left", "attentions", "eager", "no mask"])
def test_other_batches_are_computed_with_padding(padding, case):
    head = "TokenClassification"
    stock = make_model(head, **({"attn_implementation": "eager"} if case == "eager" else {})).eval()
    ours = copy.deepcopy(stock)
    padding.enter_context(without_padding(ours))
    inputs = make_batch(head)
    if case == "left":
        inputs = {name: x.flip(1) for name, x in inputs.items()}
    others = {"output_attentions": True} if case == "attentions" else {}
    if case == "no mask":
        del inputs["attention_mask"]
    torch.testing.assert_close(ours(**inputs, **others).logits, stock(**inputs, **others).logits, rtol=0, atol=1e-6)


@pytest.mark.parametrize("change", ["layer", "hook", "dropout"])
def test_an_encoder_that_was_changed_is_left_alone(change):
    class Adapter(nn.Linear):
        pass

    model = make_model("SequenceClassification")
    layer = model.bert.encoder.layer[0]
    if change == "layer":
        layer.output.dense = Adapter(32, 16)
    if change == "hook":
        layer.register_forward_hook(lambda *_: None)
    if change == "dropout":
        layer.output.dropout.p = 0.5
    encoder = model.bert
    with without_padding(model), without_padding(nn.Linear(2, 2)):
        assert model.bert is encoder


def test_afterwards_the_model_has_its_own_encoder():
    model = make_model("SequenceClassification").train()
    encoder = model.bert
    with without_padding(model):
        assert type(model.bert) is UnpaddedBertModel
        model.eval()
    assert model.bert is encoder
    assert not encoder.training
