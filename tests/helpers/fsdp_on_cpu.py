"""Makes accelerate shard on CPU ranks (gloo) as it does on GPUs; it ignores the FSDP plugin there without a word."""

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType


def shard_on_cpu() -> None:
    """Patches accelerate in this process, which must be one of several ranks."""
    original = AcceleratorState.__init__

    def initialize(self, *args, fsdp_plugin=None, **kwargs):
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.FSDP
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = fsdp_plugin

    AcceleratorState.__init__ = initialize
