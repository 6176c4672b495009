"""Muon for the weight matrices of the encoder, AdamW for every other parameter, as one optimizer.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) replaces the update of a matrix by the nearest
semi-orthogonal matrix, so that all directions of the update have about the same length. PyTorch's `torch.optim.Muon`
always orthogonalises in bfloat16, which on a CPU without bf16 units takes three times as long as float32, and takes
only matrices; the update here is the same, in the precision of the run.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

# Coefficients of the quintic iteration (Jordan et al. 2024): steep at zero, singular values end in about [0.7, 1.2].
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5
_EPSILON = 1e-7  # in place of the norm of a zero matrix
_MOMENTUM = 0.95  # μ below

_lists: Any = torch  # its operations on lists of tensors have no type annotations


def orthogonalize(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Approximate the semi-orthogonal matrix nearest to `matrix`, by five Newton-Schulz iterations.

    With the singular value decomposition U·S·Vᵀ the result is about U·Vᵀ: the iteration sends each singular value
    into [0.7, 1.2] and does not change U and V.
    Input and result are (rows, columns), or (n, rows, columns) for n matrices in the same few kernels.
    """
    rows, columns = matrix.shape[-2:]
    multiply_add = torch.addmm if matrix.ndim == 2 else torch.baddbmm
    x = matrix.to(dtype)
    x = x.mT if rows > columns else x  # the products below are of the shorter side
    norm = x.norm() if x.ndim == 2 else x.flatten(1).norm(dim=1)[:, None, None]
    x = x / norm.clamp(min=_EPSILON)  # Frobenius norm: no singular value is above 1

    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        polynomial = multiply_add(gram, gram, gram, beta=_B, alpha=_C)  # b·xxᵀ + c·(xxᵀ)²
        x = multiply_add(x, polynomial, x, beta=_A)  # a·x + polynomial · x

    return x.mT if rows > columns else x


def orthogonalize_all(matrices: list[Tensor], dtype: torch.dtype) -> Tensor:
    """Return n matrices of one shape orthogonalized, (n, rows, columns).

    The ranks of a run, which all have the same matrices, share the work: each computes an equal part of them.
    """
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    if ranks == 1:
        return _orthogonalize_on_this_rank(matrices, dtype)

    share = -(-len(matrices) // ranks)  # of each rank, rounded up; the last ranks fill theirs up with zeros
    begin = dist.get_rank() * share
    my_matrices = matrices[begin : begin + share]
    my_results = torch.zeros(share, *matrices[0].shape, dtype=dtype, device=matrices[0].device)
    if my_matrices:
        my_results[: len(my_matrices)] = _orthogonalize_on_this_rank(my_matrices, dtype)
    results = my_results.new_empty(ranks * share, *matrices[0].shape)
    dist.all_gather_into_tensor(results, my_results)
    return results[: len(matrices)]


def _orthogonalize_on_this_rank(matrices: list[Tensor], dtype: torch.dtype) -> Tensor:
    """Return n matrices of one shape orthogonalized, (n, rows, columns), without the help of other ranks."""
    if matrices[0].device.type == "cpu":  # which gains nothing from a stack; with it an H200 is seven times as fast
        return torch.stack([orthogonalize(matrix, dtype) for matrix in matrices])
    return orthogonalize(torch.stack(matrices), dtype)


def encoder_matrices(model: nn.Module) -> list[str]:
    """Return the names of the parameters that Muon updates: the trainable matrices of the encoder's layers."""
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.ndim == 2 and ".layer." in f".{name}"
    ]


class MuonWithAdamW(torch.optim.Optimizer):
    """Update some groups of matrices by Muon and all other groups by PyTorch's fused AdamW.

    The Muon update of a matrix W (r, c) with gradient G, momentum buffer M, orthogonalisation O(·):

        M ← μM + (1 − μ)G        W ← W · (1 − lr · decay) − lr · 0.2 · √max(r, c) · O(μM + (1 − μ)G)

    The factor 0.2 · √max(r, c) gives the update the root mean square of AdamW's updates (Liu et al. 2025, "Muon is
    Scalable for LLM Training", section 2.2), so that learning rates and weight decay are comparable.
    Groups have `params`, `lr`, `weight_decay`, those of Muon `momentum`; `dtype`: precision of the orthogonalisation.
    """

    def __init__(
        self,
        matrix_groups: list[dict],
        other_groups: list[dict],
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        dtype: torch.dtype = torch.float32,
    ):
        self._dtype = dtype
        self._adamw = torch.optim.AdamW(other_groups, betas=betas, eps=eps, fused=True)

        muon_groups = [{"momentum": _MOMENTUM, **group} for group in matrix_groups]
        # AdamW's groups come first: Trainer logs the learning rate of the first group. Schedules with a
        # lowest rate read the default `lr` and make a ratio of it, which applies to Muon's rate too.
        super().__init__([*self._adamw.param_groups, *muon_groups], {"lr": other_groups[0]["lr"]})
        self._share_with_adamw()

    def _share_with_adamw(self) -> None:
        """Make AdamW work on this optimizer's groups and state; loading a state replaces both."""
        self._adamw.param_groups = [group for group in self.param_groups if "momentum" not in group]
        self._adamw.state = self.state

    def load_state_dict(self, state_dict: dict) -> None:
        super().load_state_dict(state_dict)
        self._share_with_adamw()

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> Any:
        loss = self._adamw.step(closure)
        for group in self.param_groups:
            if "momentum" in group:
                self._step_matrices(group)
        return loss

    def _step_matrices(self, group: dict) -> None:
        """Update the matrices of a group that have gradients, those of one shape together."""
        by_shape = defaultdict(list)
        for weight in group["params"]:
            if weight.grad is not None:
                by_shape[weight.shape].append(weight)
                if "momentum_buffer" not in self.state[weight]:
                    self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)

        for weights in by_shape.values():
            # One by one on a single CPU, where a stack gains nothing and needs memory
            separately = weights[0].device.type == "cpu" and not dist.is_initialized()
            at_once = 1 if separately else len(weights)
            for begin in range(0, len(weights), at_once):
                self._step_equal_shapes(weights[begin : begin + at_once], group)

    def _step_equal_shapes(self, weights: list[Any], group: dict) -> None:
        """Update matrices of one shape together, as in the class's formula."""
        averages = self._averaged_gradients(weights, group["momentum"])
        updates = orthogonalize_all(averages, self._dtype).to(weights[0].dtype).contiguous().unbind()
        if isinstance(weights[0], DTensor):  # sharded by FSDP2: take this rank's part of the whole update
            updates = [
                distribute_tensor(update, weight.device_mesh, weight.placements, src_data_rank=None)
                for weight, update in zip(weights, updates, strict=True)
            ]

        scale = 0.2 * math.sqrt(max(weights[0].shape))
        _lists._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        _lists._foreach_add_(weights, updates, alpha=-group["lr"] * scale)

    def _averaged_gradients(self, weights: list[Any], momentum: float) -> list[Tensor]:
        """Update the momentum buffers M; return μM + (1 − μ)G (Nesterov's momentum) of each whole matrix."""
        gradients = [weight.grad for weight in weights]
        buffers = [self.state[weight]["momentum_buffer"] for weight in weights]
        _lists._foreach_lerp_(buffers, gradients, 1 - momentum)
        averages = _lists._foreach_lerp(gradients, buffers, momentum)
        # FSDP2 shards matrices; only whole ones can be orthogonalized
        return [average.full_tensor() if isinstance(average, DTensor) else average for average in averages]
