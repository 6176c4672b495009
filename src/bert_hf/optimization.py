"""Parameter groups, Adam with and without bias correction, and the schedules of the paper and of the 2018 code."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.optim.lr_scheduler import LambdaLR


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Two groups: decayed, and not decayed (LayerNorm and biases; 2018 code, optimization.py)."""
    decayed, spared = [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (spared if name.endswith("bias") or "LayerNorm" in name else decayed).append(parameter)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": spared, "weight_decay": 0.0}]


_CORRECTED = 2.0**30  # steps after which nothing is left of the bias correction: 0.999^2³⁰ is 0


class BertAdam(torch.optim.Optimizer):
    """Adam of the 2018 code: decoupled weight decay and *no* bias correction.

        m ← β₁m + (1 − β₁)g        v ← β₂v + (1 − β₂)g²        w ← w − lr · (m / (√v + ε) + decay · w)

    Without the correction the first steps are larger: at step one (1 − β₁)/√(1 − β₂) ≈ 3.2 times lr per coordinate
    where corrected Adam makes 1. Warm-up hides it. PyTorch has no Adam without the correction, but its fused AdamW
    corrects by 1 − βᵗ, which is 1 for a t that is large enough. So it is one pass over the memory as well, and where
    `found_inf` is set (a tensor on the device, 1 where the gradient is not finite) it leaves the update out by itself.

    Source: google-research/bert@eedf571, optimization.py, AdamWeightDecayOptimizer.
    """

    found_inf: Tensor | None = None
    grad_scale: Tensor | None = None

    def __init__(self, params, lr: float = 1e-4, betas=(0.9, 0.999), eps: float = 1e-6, weight_decay: float = 0.01):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "fused": True}
        super().__init__(params, defaults)
        self._steps: dict[torch.device, Tensor] = {}

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # of a checkpoint that was written before there was a fused form
            group.setdefault("fused", True)

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group, [p for p in group["params"] if p.grad is not None])
        return loss

    def _corrected(self, device: torch.device) -> Tensor:
        """The number of the step that the fused form is told, always the same: in float32, 2³⁰ + 1 is 2³⁰."""
        if device not in self._steps:
            self._steps[device] = torch.full((), _CORRECTED, device=device)
        return self._steps[device]

    def _step_group(self, group: dict, parameters: list[Tensor]) -> None:
        for parameter in parameters:
            if parameter not in self.state:
                self.state[parameter] = {
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }

        beta1, beta2 = group["betas"]
        adamw(
            parameters,
            [p.grad for p in parameters],
            [self.state[p]["exp_avg"] for p in parameters],
            [self.state[p]["exp_avg_sq"] for p in parameters],
            [],
            [self._corrected(p.device) for p in parameters],
            fused=True,
            grad_scale=self.grad_scale,
            found_inf=self.found_inf,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def make_optimizer(
    model: nn.Module,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.01,
    bias_correction: bool = True,
) -> torch.optim.Optimizer:
    """The paper's Adam (A.2) on the model's parameters: AdamW, or `BertAdam` without correction; both fused."""
    groups = parameter_groups(model, weight_decay)
    if bias_correction:
        return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=True)
    return BertAdam(groups, lr=lr, betas=betas, eps=eps)


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
