"""Muon compared with PyTorch's own and with the singular value decomposition, and used in the Trainer."""

import pytest
import torch
from helpers.trainer_runs import make
from safetensors.torch import load_file

from bert_hf import BertForPreTraining
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.errors import InputError
from bert_hf.training.optimization.muon import MuonWithAdamW, encoder_matrices, orthogonalize
from bert_hf.training.optimization.optimizers import check_optimizer, make_optimizer

MUON = {"optim": "muon", "learning_rate": 1e-3, "muon_learning_rate": 3e-3}


def both_optimizers(matrices, vectors, rate=0.01):
    """Ours on copies of the parameters, PyTorch's two on other copies."""
    ours = [[tensor.clone().requires_grad_() for tensor in part] for part in (matrices, vectors)]
    theirs = [[tensor.clone().requires_grad_() for tensor in part] for part in (matrices, vectors)]
    optimizer = MuonWithAdamW(
        [{"params": ours[0], "lr": rate, "weight_decay": 0.1}],
        [{"params": ours[1], "lr": 0.001, "weight_decay": 0.01}],
        dtype=torch.bfloat16,
    )
    muon = torch.optim.Muon(theirs[0], lr=rate, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(theirs[1], lr=0.001, weight_decay=0.01, eps=1e-6, fused=True)
    return [*ours[0], *ours[1]], [*theirs[0], *theirs[1]], optimizer, (muon, adamw)


def test_it_is_pytorchs_muon_and_adamw():
    """Wide, tall and square matrices, five steps in bfloat16, the state saved and loaded in between."""
    torch.manual_seed(0)
    matrices = [torch.randn(8, 24), torch.randn(24, 8), torch.randn(16, 16)]
    ours, theirs, optimizer, references = both_optimizers(matrices, [torch.randn(7)])

    for step in range(5):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn_like(mine)
            other.grad = mine.grad.clone()
        optimizer.step()
        for reference in references:
            reference.step()
        if step == 2:
            saved = optimizer.state_dict()
            groups = [{"params": ours[:3], "lr": 9.0, "weight_decay": 9.0}], [{"params": ours[3:], "lr": 9.0}]
            optimizer = MuonWithAdamW(*groups, dtype=torch.bfloat16)
            optimizer.load_state_dict(saved)

    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("shape", [(16, 16), (8, 32), (32, 8)])
def test_orthogonalized_is_the_matrix_with_singular_values_near_one(shape):
    torch.manual_seed(1)
    matrix = torch.randn(shape, dtype=torch.float64)
    u, values, v = torch.linalg.svd(matrix, full_matrices=False)
    kept = values / values.norm() > 0.02  # five iterations lift what is not almost zero

    result = orthogonalize(matrix, torch.float64)
    rotated = u.T @ result @ v.T
    lifted = rotated.diagonal()[kept]

    assert ((lifted > 0.6) & (lifted < 1.3)).all()
    torch.testing.assert_close(rotated, torch.diag(rotated.diagonal()), atol=1e-9, rtol=0)


@pytest.mark.parametrize("shape", [(16, 16), (8, 32), (32, 8)])
def test_a_stack_is_orthogonalized_as_each_of_its_matrices(shape):
    torch.manual_seed(1)
    matrices = torch.randn(3, *shape)
    each = torch.stack([orthogonalize(matrix, torch.float32) for matrix in matrices])
    torch.testing.assert_close(orthogonalize(matrices, torch.float32), each, rtol=1e-4, atol=1e-5)


def test_matrices_of_the_encoder_and_nothing_else(tmp_path, config):
    model = BertForPreTraining(config)
    names = encoder_matrices(model)
    layers = config.num_hidden_layers
    assert len(names) == 6 * layers  # query, key, value, attention output, feed-forward in and out
    assert all(name.startswith("bert.encoder.layer.") and name.endswith(".weight") for name in names)

    args = PreTrainingArguments(str(tmp_path), weight_decay=0.02, use_cpu=True, bf16=False, **MUON)
    optimizer = make_optimizer(model, args)
    decayed, spared, matrices = optimizer.param_groups
    assert [id(p) for p in matrices["params"]] == [id(model.get_parameter(name)) for name in names]
    assert (decayed["lr"], spared["lr"], matrices["lr"]) == (1e-3, 1e-3, 3e-3)
    assert (decayed["weight_decay"], spared["weight_decay"], matrices["weight_decay"]) == (0.02, 0.0, 0.02)
    parameters = sum(len(group["params"]) for group in optimizer.param_groups)
    assert parameters == len(list(model.parameters()))


def test_accumulation_makes_the_same_update(tmp_path, tokenizer):
    """As near as rounding allows: orthogonalisation lifts the small singular values, and their rounding, 500 times."""
    updates = []
    for micro, accumulation in ((16, 1), (4, 4)):
        options = {"micro": micro, "accumulation": accumulation, "steps": 2, "dropout": 0.0, "warmup_steps": 0}
        trainer = make(
            tmp_path / str(micro), tokenizer, phases=False, save_strategy="steps", save_steps=2, eval_strategy="no",
            **options, **{**MUON, "muon_learning_rate": 0.1},
        )  # fmt: skip
        before = {name: trainer.model.get_parameter(name).data.clone() for name in encoder_matrices(trainer.model)}
        trainer.train()
        after = load_file(tmp_path / str(micro) / "checkpoint-2/model.safetensors")
        updates.append(torch.cat([(after[name] - before[name]).flatten() for name in before]))
    assert (updates[0] - updates[1]).norm() <= 1e-4 * updates[0].norm()


def test_deepspeed_which_divides_matrices_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("deepspeed")
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    args = PreTrainingArguments(output_dir=str(tmp_path), use_cpu=True, bf16=False, optim="muon")
    with pytest.raises(InputError, match="DeepSpeed divides them"):
        check_optimizer(args)
