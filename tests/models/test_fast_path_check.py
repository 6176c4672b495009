"""The check of the fast path: whole runs with kernels broken on purpose, compared with runs on the plain path."""

import json
import logging
import shutil

import pytest
import torch
import transformers
from helpers.batches import ragged_batch
from helpers.trainer_runs import history, make, weights
from tiny import tiny_config
from torch.nn import functional as F

from bert_hf import BertForPreTraining
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.errors import InputError
from bert_hf.models import fast_path_check, functional, modeling_bert, unpadded_attention
from bert_hf.models.fast_path_check import FP32, HALF, FastPathCheck, Fault, difference, find_fault
from bert_hf.models.micro_batches import split_micro_batch

# ---- kernels that are broken on purpose

attention, head_gradient = unpadded_attention._dense_attention, functional._ProjectedCrossEntropy.backward


def wrong_attention(query, key, value, dropout, scaling):
    """Attends a little too sharply: the forward pass is wrong."""
    return attention(query, key, value, dropout, scaling * 1.02)


def wrong_gradient(ctx, gradient, unused):
    """The loss is right, and the gradient of the output bias a hundredth too large: 0.1 % of the whole gradient."""
    hidden, weight, bias, nothing = head_gradient(ctx, gradient, unused)
    return hidden, weight, bias * 1.01, nothing


def missing_kernel(*args, **kwargs):
    raise RuntimeError("no kernel image is available\nand more lines")


BROKEN = {
    "wrong attention": ("bert_hf.models.unpadded_attention._dense_attention", wrong_attention, "its loss is"),
    "wrong gradient": (
        "bert_hf.models.functional._ProjectedCrossEntropy.backward", staticmethod(wrong_gradient),
        "its gradient of cls.predictions.bias differs by 1.0e-02",
    ),
    "exception": (
        "bert_hf.models.modeling_bert.unpad_batch", missing_kernel,
        "it failed with RuntimeError: no kernel image is available (rank"
    ),
}  # fmt: skip


def prepared(folder, tokenizer, **options):
    """A trainer whose model attends as strongly as a trained one: fresh and this small it hardly does."""
    trainer = make(folder, tokenizer, phases=False, **options)
    with torch.no_grad():
        for parameter in trainer.model.bert.encoder.parameters():
            parameter *= 10 if parameter.dim() == 2 else 1
    return trainer


def train(folder, tokenizer, **options):
    trainer = prepared(folder, tokenizer, **options)
    trainer.train()
    return trainer


def warnings_of(caplog):
    records = [each for each in caplog.records if each.name == fast_path_check.logger.name]
    return [each.getMessage() for each in records if each.levelno >= logging.WARNING]


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
    assert runs["auto"]._fast_path.checked == ["evaluation", "training"]
    assert runs["on"]._fast_path.checked == []
    assert runs["auto"].model.fast_path
    same_bytes(tmp_path / "auto", tmp_path / "on", 6)
    assert history(runs["auto"]) == history(runs["on"])
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_kernel_leads_to_the_plain_path(tmp_path, tokenizer, caplog, monkeypatch, fault):
    """The run is byte for byte the one that is asked to take the plain path, and one warning says why."""
    name, broken, reason = BROKEN[fault]
    monkeypatch.setattr(name, broken)
    plain = train(tmp_path / "off", tokenizer, steps=4, save_steps=4, fast_path="off", eval_on_start=True)
    assert warnings_of(caplog) == []
    checked = train(tmp_path / "auto", tokenizer, steps=4, save_steps=4, eval_on_start=True)

    same_bytes(tmp_path / "auto", tmp_path / "off", 4)
    assert history(checked)[1:] == history(plain)[1:]
    (warning,) = warnings_of(caplog)
    assert reason in warning
    assert "plain path" in warning
    assert f"(rank 0, cpu, torch {torch.__version__})" in warning
    assert not checked.model.fast_path


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
    dropping.set_fast_path(False)
    dropping(**ragged_batch(dropping.config), losses_only=True).mlm_losses.mean().backward()


def test_a_resumed_run_keeps_the_result_of_its_check(tmp_path, tokenizer, caplog, monkeypatch):
    """Begun where a kernel was broken, it stays on the plain path; with another torch it is checked again."""
    with monkeypatch.context() as patch:
        patch.setattr("bert_hf.models.unpadded_attention._dense_attention", wrong_attention)
        train(tmp_path / "whole", tokenizer)
        train(tmp_path / "cut", tokenizer, stop=6)
    shutil.copytree(tmp_path / "cut", tmp_path / "elsewhere")
    caplog.clear()
    resumed = prepared(tmp_path / "cut", tokenizer)
    resumed.train(resume_from_checkpoint=str(tmp_path / "cut/checkpoint-6"))
    same_bytes(tmp_path / "whole", tmp_path / "cut", 12)
    assert not resumed.model.fast_path
    assert len(warnings_of(caplog)) == 1

    monkeypatch.setattr(fast_path_check, "_machine", lambda model: ["cpu", "cpu", "another torch", "0"])
    resumed = prepared(tmp_path / "elsewhere", tokenizer)
    resumed.train(resume_from_checkpoint=str(tmp_path / "elsewhere/checkpoint-6"))
    assert resumed._fast_path.checked == ["training"]
    assert resumed.model.fast_path


def test_the_path_is_not_saved_with_the_model(tmp_path):
    model = BertForPreTraining(tiny_config())
    model.set_fast_path(False)
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
    found = unpadded_attention.unpad_batch
    monkeypatch.setattr(modeling_bert, "unpad_batch", lambda *given: found(*given, grouped=grouped))
    torch.manual_seed(0)
    model = BertForPreTraining(tiny_config(dropout, initializer_range=0.2))
    batch, bounds = ragged_batch(model.config), HALF if half else FP32
    compute = half_losses_of if half else losses_of
    assert find_fault(model, compute, batch, bounds) is None
    monkeypatch.setattr(modeling_bert, "unpadded_attention", lambda query, *given, **how: query)  # attends to nothing
    assert find_fault(model, compute, batch, bounds) is not None


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
    assert find_fault(model, compute, batch, HALF if half else FP32) is None
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_a_comparison_leaves_no_trace():
    model = BertForPreTraining(tiny_config(0.3)).train()
    model.gradient_checkpointing_enable()
    batch = ragged_batch(model.config)
    model(**batch).loss.backward()
    before = [p.grad.clone() for p in model.parameters()]
    settings = json.dumps([str(model), str(model.config)])
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    assert find_fault(model, losses_of, batch, FP32) is None
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), before, strict=True))
    assert json.dumps([str(model), str(model.config)]) == settings
    assert model.training
    assert model.fast_path
    assert all(layer.gradient_checkpointing for layer in model.bert.encoder.layer)


def test_the_kernels_of_dropout_are_compared_though_nothing_is_dropped(monkeypatch):
    """With dropout in the model the run uses other kernels than without it: those are compared."""
    model, drawn = BertForPreTraining(tiny_config(0.1)), []
    keep_mask = functional.keep_mask
    for module in (functional, unpadded_attention):
        monkeypatch.setattr(module, "keep_mask", lambda *given: drawn.append(keep_mask(*given)) or drawn[-1])
    assert find_fault(model, losses_of, ragged_batch(model.config), FP32) is None
    assert {mask.dtype for mask in drawn} == {torch.int8, torch.float32}  # attention, and after each projection
    assert all(mask.all() for mask in drawn)


class Memory:
    """Losses that run out of memory above a number of rows on each path."""

    def __init__(self, plain: int, fast: int):
        self.limit, self.seen = {False: plain, True: fast}, []

    def __call__(self, model, inputs):
        rows = len(inputs["input_ids"])
        self.seen.append((model.fast_path, rows))
        if rows > self.limit[model.fast_path]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return losses_of(model, inputs)


@pytest.mark.parametrize(
    ("plain", "fast", "seen"),
    [
        (2, 6, [(False, 6), (False, 3), (False, 1), (True, 1)]),
        (6, 4, [(False, 6), (True, 6), (False, 3), (True, 3)]),
        (0, 6, [(False, 6), (False, 3), (False, 1)]),
    ],
)
def test_too_little_memory_is_no_fault_and_fewer_rows_are_compared(plain, fast, seen):
    model = BertForPreTraining(tiny_config())
    memory = Memory(plain, fast)
    assert find_fault(model, memory, ragged_batch(model.config), FP32) is None
    assert memory.seen == seen


def test_fewer_rows_are_the_batch_of_those_rows():
    batch = ragged_batch(tiny_config())
    part = next(split_micro_batch(batch, 2))
    assert part["input_ids"].shape == (2, 24)
    assert torch.equal(part["token_positions"], batch["attention_mask"][:2].flatten().nonzero().squeeze(1))
    assert torch.equal(part["masked_positions"], (batch["labels"][:2].flatten() != -100).nonzero().squeeze(1))
    assert part["next_sentence_label"].tolist() == [0, 1]


def test_a_failure_of_both_paths_is_no_fault_of_the_fast_one():
    model = BertForPreTraining(tiny_config())
    batch = ragged_batch(model.config)
    batch["labels"] = batch["labels"].clone()
    batch["labels"].flatten()[batch["masked_positions"][0]] = 10**6  # no token
    assert find_fault(model, losses_of, batch, FP32) is None
    assert find_fault(model, losses_of, {"inputs_embeds": torch.zeros(2, 8, 32)}, FP32) is None
    with torch.no_grad():
        model.cls.predictions.bias[3] = float("nan")  # the run's own check names it
    assert find_fault(model, losses_of, ragged_batch(model.config), FP32) is None


def test_the_bounds():
    gradient = [torch.full((4,), 3.0), torch.full((4,), 4.0), torch.zeros(2)]
    names = ["a", "b", "c"]
    for bounds in (FP32, HALF):
        for where, size in ((0, 3.0), (1, 4.0)):
            for share, found in ((0.9, False), (1.2, True), (float("nan"), True)):
                other = [each.clone() for each in gradient]
                other[where] *= 1 + share * bounds.tensor
                reason = difference(names, (5.0, gradient), (5.0, other), bounds._replace(whole=1.0, floor=0.0))
                assert (reason is not None) == found, (where, size, share)
                assert not found or f"of {names[where]} differs" in reason
        noise = [*gradient[:2], torch.full((2,), 5.0 * bounds.floor)]
        assert difference(names, (5.0, gradient), (5.0, noise), bounds) is None  # the third has no gradient in truth
        far = [each * (1 + 1.2 * bounds.whole) for each in gradient]
        assert "its gradient differs" in difference(names, (5.0, gradient), (5.0, far), bounds)
        assert "its loss is" in difference(names, (5.0, gradient), (5.0 * (1 + 2 * bounds.loss), gradient), bounds)


# ---- agreement of ranks


def agreeing(*others):
    """Gathers the result of this rank and those of others."""
    return lambda mine: [mine, *others]


def test_all_ranks_take_the_plain_path_for_the_fault_of_one(caplog):
    model = BertForPreTraining(tiny_config())
    check = FastPathCheck("auto", losses_of, agreeing(None, Fault("its loss is 3, and the plain one 4")), half=False)
    check.check("training", model, ragged_batch(model.config))
    assert not model.fast_path
    (warning,) = warnings_of(caplog)
    assert "its loss is 3, and the plain one 4 (rank 2" in warning


def test_a_device_that_is_broken_ends_the_run(monkeypatch):
    def broken(*args, **kwargs):
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(modeling_bert, "unpad_batch", broken)
    model = BertForPreTraining(tiny_config())
    check = FastPathCheck("auto", losses_of, agreeing(), half=False)
    with pytest.raises(InputError, match=r"broke the device: .*illegal memory.*; start again with --fast_path off"):
        check.check("training", model, ragged_batch(model.config))


def test_each_batch_is_compared_once(caplog):
    calls = []

    def counted(model, inputs):
        calls.append(model.fast_path)
        return losses_of(model, inputs)

    model = BertForPreTraining(tiny_config())
    check = FastPathCheck("auto", counted, agreeing(), half=False)
    for kind in ("training", "evaluation", "training"):
        check.check(kind, model, ragged_batch(model.config))
    assert calls == [False, True]
    assert not check.is_due("training")
    check.begin()  # another training, of another model
    assert check.is_due("training")
    stock = transformers.BertForPreTraining(tiny_config())  # has one path
    FastPathCheck("auto", counted, agreeing(), half=False).check("training", stock, {})


def test_instead_of_sharded_parameters_a_small_copy_is_compared(monkeypatch, caplog):
    model = BertForPreTraining(tiny_config(num_hidden_layers=3))
    next(model.parameters()).ds_id = 0  # as ZeRO 3 marks it
    batch, state = ragged_batch(model.config), torch.get_rng_state()
    FastPathCheck("auto", losses_of, agreeing(), half=False).check("training", model, batch)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.fast_path
    monkeypatch.setattr("bert_hf.models.unpadded_attention._dense_attention", wrong_attention)
    monkeypatch.setattr(model, "forward", missing_kernel)
    FastPathCheck("auto", losses_of, agreeing(), half=False).check("training", model, batch)
    assert not model.fast_path
    assert "its gradient" in warnings_of(caplog)[0] or "its loss" in warnings_of(caplog)[0]


@pytest.mark.parametrize(("given", "taken"), [("auto", "auto"), (False, "off"), ("true", "on"), ("off", "off")])
def test_yaml_s_off_is_accepted(tmp_path, given, taken):
    assert PreTrainingArguments(output_dir=str(tmp_path), fast_path=given, bf16=False).fast_path == taken
    with pytest.raises(ValueError, match="must be auto, on or off, not 'quick'"):
        PreTrainingArguments(output_dir=str(tmp_path), fast_path="quick", bf16=False)


def test_a_dropout_that_drops_nothing_has_the_bits_of_none():
    x = torch.randn(64, 64)
    dropping = functional.DropoutAdd(functional.DROP_NOTHING).train()
    assert torch.equal(dropping(x), x)
    assert torch.equal(dropping(x, x), x + x)
    dropping.fast_path = False
    assert torch.equal(dropping(x), F.dropout(x, 0.0))


def test_tf32_is_recognised_however_it_was_chosen(monkeypatch):
    """transformers chooses it by `torch.backends.fp32_precision`, after which PyTorch's older getter raises."""
    model = BertForPreTraining(tiny_config(0.0))
    monkeypatch.setattr(fast_path_check, "_device", lambda model: torch.device("cuda"))
    before = torch.backends.fp32_precision
    try:
        for precision, rounds in (("tf32", True), ("ieee", False)):
            torch.backends.fp32_precision = precision
            assert fast_path_check._rounds_products(model) is rounds
    finally:
        torch.backends.fp32_precision = before
    assert fast_path_check._rounds_products(model.bfloat16())
