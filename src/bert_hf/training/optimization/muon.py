"""Muon for the weight matrices of the encoder, AdamW for every other parameter, as one optimizer.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) replaces the update of a matrix by the nearest
semi-orthogonal matrix, so that all directions of the update have about the same length. PyTorch's `torch.optim.Muon`
always orthogonalises in bfloat16, which on a CPU without bf16 units takes three times as long as float32, and takes
matrices alone; the update here is the same, in the precision of the run.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

# Coefficients of the quintic iteration (Jordan et al. 2024): steep at zero, singular values end in about [0.7, 1.2].
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5
_EPSILON = 1e-7
_MOMENTUM = 0.95  # μ below


def orthogonalize(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """An approximation of the semi-orthogonal matrix nearest to `matrix`, by five Newton-Schulz iterations.

    With the singular value decomposition U·S·Vᵀ the result is about U·Vᵀ: the iteration sends each singular value
    into [0.7, 1.2] and leaves U and V alone.

    Args:
        matrix: (rows, columns), as the result.
        dtype: precision of the products and of the result.
    """
    rows, columns = matrix.shape
    x = matrix.to(dtype)
    x = x.T if rows > columns else x  # the products below are those of the shorter side
    x = x / x.norm().clamp(min=_EPSILON)  # no singular value above 1

    for _ in range(_ITERATIONS):
        gram = x @ x.T
        polynomial = torch.addmm(gram, gram, gram, beta=_B, alpha=_C)
        x = torch.addmm(x, polynomial, x, beta=_A)

    return x.T if rows > columns else x


def orthogonalize_all(matrices: Iterable[Tensor], dtype: torch.dtype) -> Iterator[Tensor]:
    """`orthogonalize` of each matrix; the ranks of a run, which all have the same matrices, share the work.

    They take turns (each layer of a BERT has four small matrices and two large ones in the same order, so all have
    about the same to do) and send each other the results: n ranks need about 1/n of the time of one.

    Args:
        matrices: taken one by one, so that they need not be in memory together.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        yield from (orthogonalize(matrix, dtype) for matrix in matrices)
        return

    rank, ranks = dist.get_rank(), dist.get_world_size()
    results = [
        orthogonalize(matrix, dtype).contiguous() if number % ranks == rank else torch.empty_like(matrix, dtype=dtype)
        for number, matrix in enumerate(matrices)
    ]
    sent: list[Any] = [dist.broadcast(result, number % ranks, async_op=True) for number, result in enumerate(results)]
    for result, work in zip(results, sent, strict=True):
        work.wait()
        yield result


def encoder_matrices(model: nn.Module) -> list[str]:
    """Names of the parameters that Muon updates: the two-dimensional weights of the encoder's layers."""
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.ndim == 2 and ".layer." in f".{name}"
    ]


class MuonWithAdamW(torch.optim.Optimizer):
    """Updates some groups of matrices by Muon and all other groups by PyTorch's fused AdamW.

    The Muon update of a matrix W (r, c) with gradient G, momentum buffer M, orthogonalisation O(·):

        M ← μM + (1 − μ)G        W ← W · (1 − lr · decay) − lr · 0.2 · √max(r, c) · O(μM + (1 − μ)G)

    The factor 0.2 · √max(r, c) gives the update the root mean square that AdamW's updates have (Liu et al. 2025,
    "Muon is Scalable for LLM Training", section 2.2), so that learning rates and weight decay are comparable.

    Both kinds share `param_groups` and `state`: Trainer, a learning-rate schedule and a checkpoint see one optimizer.

    Args:
        matrix_groups: dicts with `params` (two-dimensional), `lr` and `weight_decay`.
        other_groups: dicts with `params`, `lr` and `weight_decay`.
        betas, eps: of AdamW.
        dtype: precision of the orthogonalisation.
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
        # AdamW's groups come first: the learning rate that Trainer logs is that of the first group. Schedules with a
        # lowest rate read the default `lr` and make a ratio of it, which applies to Muon's rate too.
        super().__init__([*self._adamw.param_groups, *muon_groups], {"lr": other_groups[0]["lr"]})
        self._share_with_adamw()

    def _share_with_adamw(self) -> None:
        """Makes AdamW work on this optimizer's groups and state; loading a state replaces both."""
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
        rate = group["lr"]
        weights = [weight for weight in group["params"] if weight.grad is not None]
        averages = (self._averaged_gradient(weight, group["momentum"]) for weight in weights)
        updates = orthogonalize_all(averages, self._dtype)

        for weight, update in zip(weights, updates, strict=True):
            scale = 0.2 * math.sqrt(max(weight.shape))
            weight.mul_(1 - rate * group["weight_decay"])
            if isinstance(weight, DTensor):  # this rank's part of an update that all ranks have
                update = update.to(weight.dtype)
                update = distribute_tensor(update, weight.device_mesh, weight.placements, src_data_rank=None)
            weight.add_(update, alpha=-rate * scale)

    def _averaged_gradient(self, weight: Any, momentum: float) -> Tensor:
        """The gradients of a whole matrix, averaged with Nesterov's momentum; updates the momentum buffer."""
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)

        average = state["momentum_buffer"]
        average.lerp_(weight.grad, 1 - momentum)
        averaged = weight.grad.lerp(average, momentum)
        return averaged.full_tensor() if isinstance(averaged, DTensor) else averaged  # gathered where FSDP2 shards it
