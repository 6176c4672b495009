"""Parameter groups, Adam with and without bias correction, and the schedules of the paper and of the 2018 code."""

from collections.abc import Callable

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from bert_hf.muon import MuonWithAdamW, encoder_matrices


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Two groups: decayed, and not decayed (LayerNorm and biases; 2018 code, optimization.py)."""
    decayed, spared = [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (spared if name.endswith("bias") or "LayerNorm" in name else decayed).append(parameter)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": spared, "weight_decay": 0.0}]


class BertAdam(torch.optim.Optimizer):
    """Adam of the 2018 code: decoupled weight decay and *no* bias correction.

        m ← β₁m + (1 − β₁)g        v ← β₂v + (1 − β₂)g²        w ← w − lr · (m / (√v + ε) + decay · w)

    Without the correction the first steps are larger: at step one (1 − β₁)/√(1 − β₂) ≈ 3.2 times lr per coordinate
    where corrected Adam makes 1. Warm-up hides it. PyTorch has no Adam without the correction.

    Source: google-research/bert@eedf571, optimization.py, AdamWeightDecayOptimizer.
    """

    def __init__(self, params, lr: float = 1e-4, betas=(0.9, 0.999), eps: float = 1e-6, weight_decay: float = 0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group, [p for p in group["params"] if p.grad is not None])
        return loss

    def _step_group(self, group: dict, parameters: list[torch.Tensor]) -> None:
        if not parameters:
            return
        for parameter in parameters:
            if parameter not in self.state:
                self.state[parameter] = {
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
        gradients = [p.grad for p in parameters]
        m = [self.state[p]["exp_avg"] for p in parameters]
        v = [self.state[p]["exp_avg_sq"] for p in parameters]
        beta1, beta2 = group["betas"]
        torch._foreach_lerp_(m, gradients, 1 - beta1)
        torch._foreach_mul_(v, beta2)
        torch._foreach_addcmul_(v, gradients, gradients, 1 - beta2)
        denominator = torch._foreach_sqrt(v)
        torch._foreach_add_(denominator, group["eps"])
        update = torch._foreach_div(m, denominator)
        if group["weight_decay"]:
            torch._foreach_add_(update, parameters, alpha=group["weight_decay"])
        torch._foreach_add_(parameters, update, alpha=-group["lr"])


def make_optimizer(
    model: nn.Module,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.01,
    bias_correction: bool = True,
) -> torch.optim.Optimizer:
    """The paper's Adam (A.2) on the model's parameters: PyTorch's fused AdamW, or `BertAdam` without correction."""
    groups = parameter_groups(model, weight_decay)
    if bias_correction:
        return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=True)
    return BertAdam(groups, lr=lr, betas=betas, eps=eps)


def make_muon(
    model: nn.Module,
    *,
    lr: float,
    muon_lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.01,
    dtype: torch.dtype = torch.float32,
) -> MuonWithAdamW:
    """Muon at `muon_lr` for the encoder's matrices, AdamW at `lr` for embeddings, biases, LayerNorm and heads."""
    matrices = {id(model.get_parameter(name)) for name in encoder_matrices(model)}
    by_muon = [parameter for parameter in model.parameters() if id(parameter) in matrices]

    by_adamw = []
    for group in parameter_groups(model, weight_decay):
        parameters = [parameter for parameter in group["params"] if id(parameter) not in matrices]
        by_adamw.append({**group, "params": parameters, "lr": lr})

    muon_group = {"params": by_muon, "lr": muon_lr, "weight_decay": weight_decay}
    return MuonWithAdamW([muon_group], by_adamw, betas=betas, eps=eps, dtype=dtype)


def linear_from_step_zero(optimizer: torch.optim.Optimizer, warmup_steps: int, total_steps: int) -> LambdaLR:
    """The schedule of the 2018 code: the decay to zero counts from step 0, and warm-up merely overrides it.

    At 10,000 of 1,000,000 steps the rate so falls from 1.00 to 0.99 of its peak where warm-up ends; transformers'
    `linear` starts the decay there.
    """

    def share(step: int) -> float:
        if step < warmup_steps:
            return step / max(1, warmup_steps)
        return max(0.0, 1.0 - step / max(1, total_steps))

    return LambdaLR(optimizer, share)
