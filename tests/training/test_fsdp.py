"""PyTorch's part of FSDP2 in one process; training/test_distributed.py runs two ranks through accelerate."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy
from helpers.trainer_runs import make
from tiny import tiny_config
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from bert_hf import BertForPreTraining
from bert_hf.config.precision import keep_fp32_outputs

pytestmark = pytest.mark.filterwarnings("ignore:.*returned a view tensor:UserWarning")


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def sharded(model, mesh, policy=None):
    """As `accelerate.utils.fsdp_utils.fsdp2_prepare_model`, with a file that names no layer class."""
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap")
    wraps = fsdp2_prepare_auto_wrap_policy(plugin, model)
    for module in reversed([module for module in model.modules() if wraps(module)]):
        fully_shard(module, mesh=mesh, mp_policy=policy or MixedPrecisionPolicy())
    return fully_shard(model, mesh=mesh, mp_policy=policy or MixedPrecisionPolicy())


def test_16_bit_autocast_keeps_losses_and_gradients_in_fp32(mesh):
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap")
    plugin.set_mixed_precision("bf16")
    keep_fp32_outputs(SimpleNamespace(fsdp_plugin=plugin))
    assert plugin.mixed_precision_policy.param_dtype == torch.bfloat16  # what makes it fast

    model = sharded(BertForPreTraining(tiny_config(0.0)), mesh, plugin.mixed_precision_policy)
    ids = torch.randint(5, 90, (4, 12), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(0, 48, 3)
    with torch.autocast("cpu", torch.bfloat16):  # see the next test
        losses = model(ids, labels=ids, masked_positions=positions, losses_only=True).mlm_losses
    assert losses.dtype == torch.float32
    assert not torch.equal(losses, losses.bfloat16().float())
    losses.sum().backward()
    assert {parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None} == {torch.float32}


@pytest.mark.parametrize("fsdp2", [True, False])
def test_the_forward_pass_is_under_autocast(tmp_path, tokenizer, monkeypatch, fsdp2):
    """accelerate itself wraps the forward pass under every other engine."""
    trainer = make(tmp_path, tokenizer, bf16=True)
    monkeypatch.setattr(type(trainer.accelerator), "is_fsdp2", fsdp2)
    with trainer.compute_loss_context_manager():
        assert torch.is_autocast_enabled("cpu") is fsdp2
