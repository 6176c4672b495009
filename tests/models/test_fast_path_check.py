"""The check of the fast path: whole runs with kernels broken on purpose, compared with runs on the plain path."""

import pytest
import torch
import transformers
from helpers.batches import ragged_batch
from helpers.trainer_runs import history, make, weights
from tiny import tiny_config
from torch.nn import functional as F

from bert_hf import BertForPreTraining
from bert_hf.models import functional, modeling_bert, unpadded_attention
from bert_hf.models.fast_path_check import FP32, HALF, FastPathCheck, difference, find_fault

# ---- kernels that are broken on purpose

attention, head_gradient = modeling_bert.unpadded_attention, functional._ProjectedCrossEntropy.backward


def wrong_attention(*inputs, scaling, **options):
    """Attends too sharply: the forward pass is wrong."""
    return attention(*inputs, scaling=scaling * 1.1, **options)


def wrong_gradient(ctx, gradient, unused):
    """The loss is right, and the gradient of the output bias a hundredth too large: 0.1 % of the whole gradient."""
    hidden, weight, bias, nothing = head_gradient(ctx, gradient, unused)
    return hidden, weight, bias * 1.01, nothing


def missing_kernel(*args, **kwargs):
    raise RuntimeError("no kernel image is available\nand more lines")


BROKEN = {
    "wrong attention": (
        "bert_hf.models.modeling_bert.unpadded_attention", wrong_attention, "the loss of the fast path is",
    ),
    "wrong gradient": (
        "bert_hf.models.functional._ProjectedCrossEntropy.backward", staticmethod(wrong_gradient),
        "gradient of cls.predictions.bias differs by",
    ),
    "exception": (
        "bert_hf.models.modeling_bert.unpad_batch", missing_kernel,
        "the fast path fails with RuntimeError: no kernel image is available"
    ),
}  # fmt: skip


def train(folder, tokenizer, **options):
    trainer = make(folder, tokenizer, phases=False, **options)
    trainer.train()
    return trainer


def lines_of(caplog):
    return [line for line in caplog.messages if line.startswith("using the plain path")]


def same_bytes(first, second, step):
    for name in ("model", "optimizer", "scheduler"):
        files = [run / f"checkpoint-{step}/{name}.safetensors" for run in (first, second)]
        assert files[0].read_bytes() == files[1].read_bytes(), name


# ---- whole runs


def test_a_healthy_run_is_not_disturbed(tmp_path, tokenizer, caplog):
    """Dropout on, an evaluation before the first step: with the check and without it, the same bytes."""
    runs = {}
    for mode in ("auto", "on"):
        runs[mode] = train(tmp_path / mode, tokenizer, steps=6, fast_path=mode, eval_on_start=True)
    assert not runs["auto"]._fast_path.is_due
    assert runs["auto"].model.fast_path
    same_bytes(tmp_path / "auto", tmp_path / "on", 6)
    assert history(runs["auto"]) == history(runs["on"])
    assert lines_of(caplog) == []


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_kernel_leads_to_the_plain_path(tmp_path, tokenizer, caplog, monkeypatch, fault):
    """The run is byte for byte the one that is asked to take the plain path, also where it is resumed."""
    name, broken, reason = BROKEN[fault]
    monkeypatch.setattr(name, broken)
    plain = train(tmp_path / "off", tokenizer, steps=6, fast_path="off")
    caplog.clear()
    train(tmp_path / "auto", tokenizer, steps=6, stop=3)
    checked = make(tmp_path / "auto", tokenizer, steps=6, phases=False)
    checked.train(resume_from_checkpoint=str(tmp_path / "auto/checkpoint-3"))

    same_bytes(tmp_path / "auto", tmp_path / "off", 6)
    assert history(checked) == history(plain)
    assert not checked.model.fast_path
    lines = lines_of(caplog)
    assert len(lines) == 2
    assert all(reason in line for line in lines)


def test_the_plain_path_is_the_stock_model(tmp_path, tokenizer, monkeypatch):
    """With every kernel of ours missing: loss and gradient of the stock model on the same batch, dropout 0."""
    for name in ("unpad_batch", "project", "projected_cross_entropy", "unpadded_attention"):
        monkeypatch.setattr(modeling_bert, name, missing_kernel)
    for module in (functional, unpadded_attention):
        monkeypatch.setattr(module, "keep_mask", missing_kernel)
    trainer = make(
        tmp_path, tokenizer, micro=4, accumulation=4, steps=1, dropout=0.0, logging_steps=1, fast_path="off"
    )
    batch = trainer.data_collator([trainer.train_dataset[number] for number in trainer._get_train_sampler()])
    batch = {name: value for name, value in batch.items() if not name.endswith("_positions")}
    stock = transformers.BertForPreTraining(tiny_config(0.0))
    stock.load_state_dict(weights(trainer))
    expected = stock.eval()(**batch).loss.item()
    trainer.train()
    row = next(row for row in trainer.state.log_history if "loss" in row)
    assert row["loss"] == pytest.approx(expected, rel=1e-6)
    dropping = BertForPreTraining(tiny_config(0.5)).train()  # its dropout, too, is PyTorch's
    dropping.fast_path = False
    dropping(**ragged_batch(dropping.config), losses_only=True).mlm_losses.mean().backward()


def test_the_path_is_not_saved_with_the_model(tmp_path):
    model = BertForPreTraining(tiny_config())
    model.fast_path = False
    model.save_pretrained(tmp_path)
    assert "fast_path" not in (tmp_path / "config.json").read_text()
    assert BertForPreTraining.from_pretrained(tmp_path).fast_path


# ---- the comparison


def losses_of(model, inputs):
    return model(**inputs, losses_only=True)


def half_losses_of(model, inputs):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(**inputs, losses_only=True)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("grouped", [True, False])  # the layout of a CPU, and that of a GPU
@pytest.mark.parametrize("half", [False, True])
def test_both_paths_agree_and_a_wrong_attention_does_not(monkeypatch, dropout, grouped, half):
    found = modeling_bert.unpad_batch
    monkeypatch.setattr(modeling_bert, "unpad_batch", lambda *given: found(*given, grouped=grouped))
    torch.manual_seed(0)
    model = BertForPreTraining(tiny_config(dropout, initializer_range=0.2))
    batch = ragged_batch(model.config)
    compute = half_losses_of if half else losses_of
    assert find_fault(model, compute, batch, half) is None
    monkeypatch.setattr(modeling_bert, "unpadded_attention", lambda query, *given, **how: query)  # attends to nothing
    assert find_fault(model, compute, batch, half) is not None


@pytest.mark.gpu
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("half", [False, True])
def test_on_a_gpu_both_paths_agree(dropout, half):
    def compute(model, inputs):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
            return model(**inputs, losses_only=True)

    model = BertForPreTraining(tiny_config(dropout, hidden_size=128, initializer_range=0.1)).cuda()
    batch = {name: value.cuda() for name, value in ragged_batch(model.config).items()}
    state = torch.cuda.get_rng_state()
    assert find_fault(model, compute, batch, half) is None
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_a_comparison_leaves_no_trace():
    model = BertForPreTraining(tiny_config(0.3)).train()
    batch = ragged_batch(model.config)
    model(**batch).loss.backward()
    before = [p.grad.clone() for p in model.parameters()]
    settings = f"{model} {model.config}"
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    assert find_fault(model, losses_of, batch) is None
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), before, strict=True))
    assert f"{model} {model.config}" == settings


def test_a_batch_of_which_nothing_is_predicted_has_no_fault():
    model = BertForPreTraining(tiny_config(0.0))
    batch = ragged_batch(model.config)
    batch["labels"].fill_(-100)
    batch["masked_positions"] = batch["masked_positions"][:0]
    del batch["next_sentence_label"]
    assert find_fault(model, losses_of, batch) is None


def test_the_kernels_of_dropout_are_compared_though_nothing_is_dropped(monkeypatch):
    """With dropout in the model the run uses other kernels than without it: those are compared."""
    model, drawn = BertForPreTraining(tiny_config(0.1)), []
    keep_mask = functional.keep_mask
    for module in (functional, unpadded_attention):
        monkeypatch.setattr(module, "keep_mask", lambda *given: drawn.append(keep_mask(*given)) or drawn[-1])
    assert find_fault(model, losses_of, ragged_batch(model.config)) is None
    assert {mask.dtype for mask in drawn} == {torch.int8, torch.float32}  # attention, and after each projection
    assert all(mask.all() for mask in drawn)


@pytest.mark.parametrize("bounds", [FP32, HALF])
def test_the_bounds(bounds):
    gradient = {"a": torch.full((4,), 3.0), "b": torch.full((4,), 4.0), "c": torch.zeros(2)}
    plain = (5.0, gradient)
    assert difference(plain, plain, bounds) is None
    assert difference(plain, (5.0, {**gradient, "c": torch.full((2,), 5.0 * bounds["floor"])}), bounds) is None
    for loss in (5.0 * (1 + 2 * bounds["loss"]), float("nan")):
        assert "loss" in difference(plain, (loss, gradient), bounds)
    for share in (2.0, float("nan")):
        other = {**gradient, "b": gradient["b"] * (1 + share * (bounds["tensor"] + 2 * bounds["floor"]))}
        assert "gradient of b differs" in difference(plain, (5.0, other), bounds)


@pytest.mark.parametrize("fault", [None, "the loss of the fast path is 3, that of the plain path 4"])
def test_all_ranks_take_the_plain_path_for_the_fault_of_one(caplog, fault):
    model = BertForPreTraining(tiny_config())
    check = FastPathCheck("auto", losses_of, lambda mine: [mine, None, fault], half=False)
    check.choose(model, ragged_batch(model.config))
    assert model.fast_path == (fault is None)
    assert len(lines_of(caplog)) == (fault is not None)


def test_a_dropout_that_drops_nothing_has_the_bits_of_none():
    x = torch.randn(64, 64)
    dropping = functional.DropoutAdd(functional.DROP_NOTHING).train()
    assert torch.equal(dropping(x), x)
    assert torch.equal(dropping(x, x), x + x)
    assert torch.equal(dropping(x[None]), F.dropout(x[None], 0.0))  # padded: by PyTorch's own dropout
