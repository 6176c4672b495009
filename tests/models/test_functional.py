"""Each faster form compared with its plain one: the same numbers, for dropout with the same random draws."""

from collections import Counter

import pytest
import torch
import transformers
from helpers.batches import ragged_batch
from helpers.trainer_runs import make, weights
from tiny import tiny_config
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from bert_hf import BertForPreTraining
from bert_hf.models import functional, modeling_bert
from bert_hf.models import unpadded_attention as unpadded_attention_module
from bert_hf.models.functional import (
    DropoutAdd,
    are_plain_linear,
    fast_linear,
    keep_mask,
    project,
    projected_cross_entropy,
    token_losses,
)
from bert_hf.models.unpadded_attention import _GroupedAttention, _plan_dense_batches, unpadded_attention
from bert_hf.models.unpadded_batch import add_filler_sequence, pack_layout, unpad_batch

RAGGED = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1]])
MASKED = torch.tensor([2, 4 + 1, 4 + 3, 8 + 1, 12 + 2, 12 + 3])  # of rows 0, 1, 1, 2, 3, 3


# ---- dropout


def test_a_tenth_is_dropped_by_pytorch_s_own_generator():
    torch.manual_seed(3)
    first, second = (keep_mask(torch.Size((1000, 1001)), 0.1, torch.float32) for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(keep_mask(torch.Size((1000, 1001)), 0.1, torch.float32), first)
    sigma = (0.1 * 0.9 / first.numel()) ** 0.5
    for mask in (first, second):
        assert set(mask.unique().tolist()) == {0.0, 1.0}
        assert abs(1 - mask.mean().item() - 0.1) < 5 * sigma
    both = ((first == 0) & (second == 0)).float().mean().item()
    assert abs(both - 0.01) < 5 * sigma  # independent of one another
    lanes = (first.flatten()[:-1] + first.flatten()[1:] == 0).float().mean().item()
    assert abs(lanes - 0.01) < 5 * sigma  # and of the neighbour, with which it shares a word


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_and_its_gradient(added, dtype):
    x = torch.randn(50, 40, dtype=dtype, requires_grad=True)
    residual = torch.randn(50, 40, requires_grad=True) if added else None
    torch.manual_seed(1)
    out = DropoutAdd(0.3)(x, residual)
    torch.manual_seed(1)
    mask = keep_mask(x.shape, 0.3, torch.float32) / (1 - 19661 / 65536)
    expected = x.float() * mask + (residual if added else 0)
    torch.testing.assert_close(out.float(), expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6, atol=1e-6)
    out.float().sum().backward()
    torch.testing.assert_close(x.grad.float(), mask, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6, atol=0)
    assert not added or torch.equal(residual.grad, torch.ones(50, 40))


# ---- batches without padding


def test_a_filled_batch_has_round_numbers_of_rows_and_the_same_places_for_the_heads():
    layout = unpad_batch(RAGGED, MASKED, None)
    filled = add_filler_sequence(layout)
    assert len(filled.token_indices) % 32 == 0
    assert len(filled.query_indices) % 16 == 0
    assert filled.groups[:-1] == layout.groups
    assert [sum(group[0] * group[i] for group in filled.groups) for i in (1, 2)] == [
        len(filled.token_indices), len(filled.query_indices),
    ]  # fmt: skip
    for name in ("token_indices", "query_indices"):
        real = getattr(layout, name)
        assert torch.equal(getattr(filled, name)[: len(real)], real)
    assert filled.cls_queries is layout.cls_queries
    assert filled.masked_queries is layout.masked_queries


def test_the_example_of_unpad_batch():
    mask, masked = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]), torch.tensor([2, 5])
    layout = unpad_batch(mask, masked, None)
    assert layout.token_indices.tolist() == [4, 5, 6, 7, 0, 1, 2]
    assert layout.query_indices.tolist() == [0, 1, 4, 6]
    assert layout.cls_queries.tolist() == [2, 0]
    assert layout.masked_queries.tolist() == [3, 1]
    assert layout.groups == ((1, 4, 2), (1, 3, 2))
    assert layout.cu_seqlens.tolist() == [0, 4, 7]
    assert layout.query_cu_seqlens.tolist() == [0, 2, 4]


def test_sequences_of_equal_shape_are_neighbours():
    layout = unpad_batch(RAGGED, MASKED, None)
    assert layout.groups == ((2, 4, 3), (1, 3, 2), (1, 2, 2))  # rows 1 and 3, row 0, row 2
    assert layout.token_indices.tolist() == [4, 5, 6, 7, 12, 13, 14, 15, 0, 1, 2, 8, 9]
    queries = layout.token_indices[layout.query_indices]
    assert queries.tolist() == [4, 5, 7, 12, 14, 15, 0, 2, 8, 9]
    assert queries[layout.cls_queries].tolist() == [0, 4, 8, 12]
    assert torch.equal(queries[layout.masked_queries], MASKED)


def test_ungrouped_sequences_keep_their_order():
    layout = unpad_batch(RAGGED, MASKED, RAGGED.flatten().nonzero().squeeze(1), grouped=False)
    assert layout.groups is None
    assert layout.cu_seqlens.tolist() == [0, 3, 7, 9, 13]
    assert layout.query_cu_seqlens.tolist() == [0, 2, 5, 7, 10]
    queries = layout.token_indices[layout.query_indices]
    assert queries.tolist() == [0, 2, 4, 5, 7, 8, 9, 12, 14, 15]
    assert torch.equal(queries[layout.masked_queries], MASKED)


def test_batches_that_have_to_be_padded():
    assert unpad_batch(RAGGED.flip(1), torch.tensor([3]), None) is None  # a row that does not begin with a token
    assert unpad_batch(RAGGED, torch.tensor([3]), None) is None  # a masked position that is padding
    assert unpad_batch(RAGGED, MASKED, None, grouped=False) is None


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("selected_queries", [True, False])
def test_attention_without_padding_is_padded_attention(grouped, selected_queries):
    torch.manual_seed(0)
    heads, size, (count, length) = 3, 8, RAGGED.shape
    query, key, value = (torch.randn(count, length, heads, size, requires_grad=True) for _ in range(3))
    turned = [x.transpose(1, 2) for x in (query, key, value)]
    whole = F.scaled_dot_product_attention(*turned, attn_mask=RAGGED[:, None, None].bool())
    layout = unpad_batch(RAGGED, MASKED, RAGGED.flatten().nonzero().squeeze(1), grouped)
    wanted = layout.token_indices[layout.query_indices] if selected_queries else layout.token_indices
    expected = whole.transpose(1, 2).flatten(0, 1)[wanted]
    q, k, v = (
        x.flatten(0, 1)[at] for x, at in ((query, wanted), (key, layout.token_indices), (value, layout.token_indices))
    )
    found = unpadded_attention(q, k, v, layout, selected_queries=selected_queries, dropout=0.0)
    torch.testing.assert_close(found, expected)
    upstream = torch.randn_like(expected)
    gradients = [
        torch.autograd.grad(out, (query, key, value), upstream, retain_graph=True) for out in (found, expected)
    ]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("scores", [1 << 20, 200])  # one batch, and batches of a few sequences
def test_attention_with_dropout_is_the_written_out_one(monkeypatch, dropout, scores):
    monkeypatch.setattr("bert_hf.models.unpadded_attention._CHUNK_SCORES", scores)
    _plan_dense_batches.cache_clear()
    torch.manual_seed(0)
    query, key, value = (torch.randn(3 * n, 2, 5, dtype=torch.float64, requires_grad=True) for n in (4, 9, 9))
    torch.manual_seed(5)
    found = _GroupedAttention.apply(query, key, value, (((3, 4),), ((3, 9),)), dropout, 0.4)
    torch.manual_seed(5)
    q, k, v = (x.unflatten(0, (3, -1)).transpose(1, 2) for x in (query, key, value))
    weights = (q @ k.transpose(2, 3) * 0.4).softmax(-1)
    if dropout:
        masks = [keep_mask(torch.Size((n, 2, 4, 9)), dropout, torch.int8) for n in ([3] if scores > 200 else [2, 1])]
        weights = weights * torch.cat(masks) / (1 - round(65536 * dropout) / 65536)
    expected = (weights @ v).transpose(1, 2).flatten(0, 1)
    torch.testing.assert_close(found, expected)
    upstream = torch.randn_like(found)
    gradients = [torch.autograd.grad(out, (query, key, value), upstream) for out in (found, expected)]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_attention_in_16_bit_fills_up_sequences_and_is_the_same():
    torch.manual_seed(0)
    shapes = ((2, 4), (1, 3), (2, 1)), ((2, 18), (1, 9), (2, 12))  # the last three are one batch
    assert _plan_dense_batches(shapes, 2, 16).shapes == (((4, 16), (6, 16)), ((4, 32), (6, 16)))
    inputs = [torch.randn(n, 2, 8, dtype=torch.bfloat16, requires_grad=True) for n in (13, 69, 69)]
    found = _GroupedAttention.apply(*inputs, shapes, 0.0, 0.4)
    contexts = []
    parts = ([n for count, n in shape for _ in range(count)] for shape in (shapes[0], shapes[1], shapes[1]))
    for qkv in zip(*(x.float().split(sizes) for x, sizes in zip(inputs, parts, strict=True)), strict=True):
        query, key, value = (x.transpose(0, 1) for x in qkv)
        contexts.append(((query @ key.transpose(1, 2) * 0.4).softmax(-1) @ value).transpose(0, 1))
    expected = torch.cat(contexts)
    torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=2e-2)
    gradients = [torch.autograd.grad(out.float().square().sum(), inputs) for out in (found, expected)]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=5e-2, atol=5e-2)


# ---- the head


@pytest.mark.parametrize("half", [False, True])
def test_projected_cross_entropy_is_the_plain_one(half):
    torch.manual_seed(0)
    hidden, decoder = torch.randn(37, 16, requires_grad=True), nn.Linear(16, 203)
    labels = torch.randint(203, (37,))
    labels[::5] = -100
    upstream = torch.rand(37)
    found, wanted = (hidden, *decoder.parameters()), []
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        losses, correct = projected_cross_entropy(hidden, decoder, labels)
        logits = decoder(hidden)
        expected = token_losses(logits, labels)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(correct, logits.argmax(-1) == labels)
    for out in (losses, expected):
        wanted.append(torch.autograd.grad(out, found, upstream))
    for mine, theirs in zip(*wanted, strict=True):
        assert mine.dtype == theirs.dtype
        assert F.cosine_similarity(mine.flatten(), theirs.flatten(), dim=0) > (0.9999 if half else 1 - 1e-6)
        assert (mine - theirs).norm() <= (1e-2 if half else 1e-6) * theirs.norm()


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_in_16_bit_the_head_s_gradient_is_as_exact_as_the_plain_one(weights):
    """Confident tokens, of which softmax − one-hot is small, and one that is a third of all, whose sum is long."""
    torch.manual_seed(0)
    labels = torch.randint(50, (3000,))
    labels[::3] = 7
    hidden = (torch.eye(64)[labels] * 6 + torch.randn(3000, 64) * 0.3).requires_grad_()
    decoder = nn.Linear(64, 50)
    with torch.no_grad():
        decoder.weight.copy_(torch.eye(50, 64) * 1.5)
    parameters = hidden, *decoder.parameters()
    exact = torch.autograd.grad(token_losses(decoder(hidden), labels).mean(), parameters)
    decoder.to(weights)
    given, parameters = hidden.detach().to(weights).requires_grad_(), list(decoder.parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=weights == torch.float32):
        found, correct = projected_cross_entropy(given, decoder, labels)
        logits = decoder(given)
    assert torch.equal(correct, logits.argmax(1) == labels)  # many logits tie in 16 bit
    sides = [torch.autograd.grad(x.mean(), [given, *parameters]) for x in (found, token_losses(logits, labels))]
    for mine, theirs, right in zip(*sides, exact, strict=True):
        errors = [(side.float() - right).norm() / right.norm() for side in (mine, theirs)]
        assert errors[0] <= 1.5 * errors[1] + 1e-3


def test_a_certain_answer_has_a_finite_loss():
    decoder = nn.Linear(1, 3)
    with torch.no_grad():
        decoder.weight.copy_(torch.tensor([[0.0], [200.0], [-200.0]]))
        decoder.bias.zero_()
    losses, correct = projected_cross_entropy(torch.ones(2, 1), decoder, torch.tensor([1, 2]))
    assert losses.tolist() == [0.0, 400.0]
    assert correct.tolist() == [True, False]


# ---- projections


class TorchDispatchCounter(TorchDispatchMode):
    """How often each operation ran."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))

    def __getitem__(self, name: str) -> int:
        return self.counts[name]


class Adapted(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


@pytest.mark.parametrize("rows", [500, 700])  # of so many the weight gradient is computed by its transpose
def test_a_linear_layer_in_bf16_is_as_exact_as_pytorch_s(rows):
    torch.manual_seed(0)
    layer = nn.Linear(96, 160)
    hidden = torch.randn(rows, 96, requires_grad=True)
    upstream = torch.randn(rows, 160).bfloat16()
    inputs = (hidden, layer.weight, layer.bias)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fast, plain = fast_linear(hidden, layer), layer(hidden)
    exact = layer(hidden)
    found, by_pytorch, expected = (
        (out, *torch.autograd.grad(out, inputs, upstream.to(out.dtype))) for out in (fast, plain, exact)
    )
    assert all(mine.dtype == theirs.dtype for mine, theirs in zip(found, by_pytorch, strict=True))
    for mine, theirs, true in zip(found, by_pytorch, expected, strict=True):
        assert (mine - true).norm() <= 1.05 * (theirs - true).norm()


@pytest.mark.parametrize("device", ["cpu", "meta", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_one_product_for_several_layers_and_none_for_adapted_ones(device):
    hidden, layers = torch.randn(3, 5, 8, device=device), [nn.Linear(8, size, device=device) for size in (4, 6, 2)]
    with TorchDispatchCounter() as count:
        found = project(hidden, *layers)
    assert count["addmm"] == (3 if device == "cpu" else 1)
    for mine, layer in zip(found, layers, strict=True):
        assert mine.shape == layer(hidden).shape
        if device != "meta":
            torch.testing.assert_close(mine, layer(hidden))
    adapted = Adapted(8, 4, device=device)
    assert are_plain_linear(*layers)
    assert not are_plain_linear(layers[0], adapted)
    calls = []
    layers[1].register_forward_hook(lambda *_: calls.append(1))
    project(hidden, *layers)
    assert calls == [1]


# ---- all of them in the model


def loss_and_gradient(model, half, **batch):
    model.zero_grad()
    with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=half):
        outputs = model(**batch)
    losses = [outputs.mlm_losses, outputs.nsp_losses] if batch.get("losses_only") else [outputs.loss]
    loss = sum(each.mean() for each in losses)
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    ("grouped", "device"), [(True, "cpu"), (False, "cpu"), pytest.param(False, "cuda", marks=pytest.mark.gpu)]
)
def test_the_fast_model_is_the_plain_one(monkeypatch, half, grouped, device):
    """No padding, trimmed last layer, fused projections and head, compared with the padded model and all logits."""
    monkeypatch.setattr(
        "bert_hf.models.modeling_bert.unpad_batch", lambda *given: unpad_batch(*given, grouped=grouped)
    )
    model = BertForPreTraining(tiny_config(dropout=0.0)).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.01 if half else 0.1))
    model.to(device)
    batch = {name: value.to(device) for name, value in ragged_batch(model.config).items()}
    whole = {name: value for name, value in batch.items() if not name.endswith("_positions")}
    expected, gradient = loss_and_gradient(model, half, **whole)
    for extra in ({}, {"losses_only": True}):
        loss, found = loss_and_gradient(model, half, **batch, **extra)
        assert loss == pytest.approx(expected, rel=1e-4 if half else 1e-5)
        assert F.cosine_similarity(found.double(), gradient.double(), dim=0) >= (0.9999 if half else 1 - 1e-9)
        assert half or (found - gradient).norm() <= 1e-5 * gradient.norm()


def test_without_the_fast_path_a_run_uses_no_operation_of_ours(tmp_path, tokenizer, monkeypatch):
    """Its first loss is the stock model's; `fast_path` is not saved."""

    def missing(*args, **kwargs):
        raise RuntimeError("not to be called")

    for name in ("unpad_batch", "project", "projected_cross_entropy", "unpadded_attention"):
        monkeypatch.setattr(modeling_bert, name, missing)
    for module in (functional, unpadded_attention_module):
        monkeypatch.setattr(module, "keep_mask", missing)
    options = {"micro": 4, "accumulation": 4, "steps": 1, "logging_steps": 1, "fast_path": False}
    trainer = make(tmp_path, tokenizer, dropout=0.0, **options)
    batch = trainer.data_collator([trainer.train_dataset[number] for number in trainer._get_train_sampler()])
    batch = {name: value for name, value in batch.items() if not name.endswith("_positions")}
    stock = transformers.BertForPreTraining(tiny_config(0.0))
    stock.load_state_dict(weights(trainer))
    expected = stock.eval()(**batch).loss.item()
    trainer.train()
    row = next(row for row in trainer.state.log_history if "loss" in row)
    assert row["loss"] == pytest.approx(expected, rel=1e-6)
    make(tmp_path / "dropout", tokenizer, dropout=0.5, **options).train()  # its dropout, too, is PyTorch's
    assert "fast_path" not in (tmp_path / "dropout/checkpoint-1/config.json").read_text()


def test_batches_of_other_collators():
    """Masked positions in any order and of any integer type, [CLS] among them; segments for all rows at once."""
    model = BertForPreTraining(tiny_config()).eval()
    batch = ragged_batch(model.config)
    batch["labels"][1, 0] = 9
    places = (batch["labels"].flatten() != -100).nonzero().squeeze(1)
    batch |= {"masked_positions": places, "token_type_ids": batch["token_type_ids"][:1]}
    expected = model(**{name: value for name, value in batch.items() if not name.endswith("_positions")})
    expected = expected.prediction_logits.flatten(0, 1)
    for order in (torch.arange(len(places)), torch.randperm(len(places))):
        batch["masked_positions"] = places[order].int()
        torch.testing.assert_close(model(**batch).prediction_logits, expected[places[order]])
    for grouped in (True, False):
        layout = unpad_batch(torch.ones(2, 4), torch.arange(8), torch.arange(8), grouped)
        x = torch.randn(8, 2, 4)
        queries = layout.token_indices[layout.query_indices]
        found = unpadded_attention(x[queries], x, x, layout, selected_queries=True, dropout=0.0)
        whole = F.scaled_dot_product_attention(*[x.unflatten(0, (2, 4)).transpose(1, 2)] * 3)
        torch.testing.assert_close(found, whole.transpose(1, 2).flatten(0, 1)[queries])


def test_padding_and_unused_tokens_of_the_last_layer_are_not_computed():
    model = BertForPreTraining(tiny_config(dropout=0.0))
    batch, seen = ragged_batch(model.config), []
    for layer in model.bert.encoder.layer:
        layer.intermediate.register_forward_hook(lambda _, given, out: seen.append(out.shape[0]))
    model(**batch)
    tokens, queries = int(batch["attention_mask"].sum()), 6 + len(batch["masked_positions"])
    assert seen == [tokens, queries]


def test_checkpointed_layers_draw_the_same_dropout_again():
    batch, results = ragged_batch(tiny_config()), []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        model = BertForPreTraining(tiny_config(dropout=0.2)).train()
        if checkpointed:
            model.gradient_checkpointing_enable()
        torch.manual_seed(1)
        results.append(loss_and_gradient(model, False, **batch, losses_only=True))
    assert results[0][0] == results[1][0]
    torch.testing.assert_close(results[0][1], results[1][1])


def test_a_label_that_is_no_token_is_an_error_and_positions_are_required():
    model = BertForPreTraining(tiny_config())
    batch = ragged_batch(model.config)
    batch["labels"].flatten()[batch["masked_positions"][0]] = -1
    with pytest.raises(RuntimeError, match="index -1 is out of bounds"):
        model(**batch, losses_only=True)
    with pytest.raises(ValueError, match="masked_positions"):
        model(batch["input_ids"], labels=batch["labels"], losses_only=True)


@pytest.mark.parametrize("asked", [{"output_hidden_states": True}, {"position_ids": torch.arange(24).unsqueeze(0)}])
def test_the_plain_path_returns_what_the_fast_path_does_not_have(asked):
    model = BertForPreTraining(tiny_config()).eval()
    batch = ragged_batch(model.config)
    outputs = model(**batch, **asked)
    torch.testing.assert_close(outputs.prediction_logits, model(**batch).prediction_logits)
    if "output_hidden_states" in asked:
        assert outputs.hidden_states[1].shape == (6, 24, 32)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch.compile's
@pytest.mark.parametrize(
    "layers",  # compiled as `PreTrainer` does on a GPU; the whole model
    [True, pytest.param(False, marks=pytest.mark.slow)],
)
def test_on_a_device_batches_of_any_length_share_few_compiled_graphs(monkeypatch, layers):
    """The layout of a GPU (the backend needs no C++ compiler)."""
    monkeypatch.setattr(
        BertForPreTraining, "unpad", lambda self, ids, *given: unpad_batch(*given[:3], grouped=False), raising=True
    )
    torch._dynamo.reset()
    model = BertForPreTraining(tiny_config(dropout=0.0, num_hidden_layers=3)).train()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = model if layers else torch.compile(model, backend=counter)
    whole = ragged_batch(model.config)
    for shorter in range(10):
        batch = {**whole, "attention_mask": whole["attention_mask"].clone()}
        batch["attention_mask"][0, 24 - shorter :] = 0
        batch["labels"] = torch.where(batch["attention_mask"].bool(), whole["labels"], -100)
        batch["masked_positions"] = (batch["labels"].flatten() != -100).nonzero().squeeze(1)
        batch["token_positions"] = batch["attention_mask"].flatten().nonzero().squeeze(1)
        model.bert.encoder.compiled_layer = model.compiled_loss = None
        expected, gradient = loss_and_gradient(model, False, **batch, losses_only=True)
        if layers:
            model.compile_layers(backend=counter)
        loss, found = loss_and_gradient(compiled, False, **batch, losses_only=True)
        assert loss == pytest.approx(expected, rel=1e-5)
        assert (found - gradient).norm() <= 1e-5 * gradient.norm()
        model.eval()(**batch)
        model.train()
    assert counter.frame_count <= 3  # an inner layer, the last one, the loss


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("flash", [True, False])
def test_on_a_device_shapes_and_types_fit(monkeypatch, flash, dropout):
    """A device without arithmetic: both kinds of attention, forward and backward, the kernel's by its own shapes."""
    monkeypatch.setattr("bert_hf.models.unpadded_attention._supports_flash", lambda query: flash)
    batch = {name: value.to("meta") for name, value in ragged_batch(tiny_config()).items()}
    layout = pack_layout(*(batch[name] for name in ("attention_mask", "masked_positions", "token_positions")))
    with torch.device("meta"):
        model = BertForPreTraining(tiny_config(dropout)).to(torch.bfloat16).train()
    with TorchDispatchCounter() as count:
        outputs = model(**batch, layout=layout, losses_only=True)
    assert count["_flash_attention_forward"] == (2 if flash else 0)
    assert not count["sort"]
    assert outputs.mlm_losses.shape == outputs.mlm_correct.shape == batch["masked_positions"].shape
    assert outputs.nsp_losses.shape == (6,)
    assert outputs.mlm_losses.dtype == outputs.nsp_losses.dtype == torch.float32
    (outputs.mlm_losses.sum() + outputs.nsp_losses.sum()).backward()
    assert all(p.grad.shape == p.shape and p.grad.dtype == p.dtype for p in model.parameters())


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_on_a_gpu_the_host_never_waits():
    model = BertForPreTraining(tiny_config(dropout=0.1, hidden_size=128)).cuda().train()
    batch = {name: value.cuda() for name, value in ragged_batch(model.config).items()}
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            outputs = model(**batch, losses_only=True)
        (outputs.mlm_losses.sum() + outputs.nsp_losses.sum()).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
