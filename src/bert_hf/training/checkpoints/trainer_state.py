"""Saves and restores the parts of a checkpoint: weights, optimizer, schedule, loss scale, generators, running log.

Everything is safetensors and JSON; nothing here writes or reads a pickle. (DeepSpeed's own files are the documented
exception, and are written by DeepSpeed.) Parameters that FSDP shards are gathered before they are written.
"""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as sharded_state
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from bert_hf.config.hardware import engine
from bert_hf.data.text.tokenization import save_tokenizer
from bert_hf.errors import NOT_FINITE, InputError, RunInterrupted
from bert_hf.models.loading import load_weights, read_weights
from bert_hf.training.checkpoints.checkpoint_files import DamagedCheckpoint
from bert_hf.training.distributed import Ranks
from bert_hf.training.patching import replaced_attributes

OPTIMIZER = "optimizer.safetensors"
SCHEDULER = "scheduler.safetensors"
SCALER = "scaler.safetensors"


def save_state(state: Any, path: Path) -> None:
    """Write nested dicts, lists, tuples, numbers, strings and tensors as safetensors, their nesting in its header."""
    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps(_to_skeleton(state, tensors))
    save_file(tensors or {"empty": torch.zeros(0)}, path, metadata={"state": skeleton})  # a schedule has no tensors


def load_state(path: Path) -> Any:
    """Return the state that `save_state` wrote; raise `DamagedCheckpoint` if the file cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            return _from_skeleton(json.loads(file.metadata()["state"]), tensors)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DamagedCheckpoint(f"{path.name}: {error}") from None


def _to_skeleton(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Return a state as JSON, and add copies of its tensors to `tensors`.

    (3, tensor) becomes {"kind": "tuple", "of": [3, {"kind": "tensor", "of": "0"}]}, with the tensor under "0".
    """
    if isinstance(value, torch.Tensor | np.ndarray):
        name = str(len(tensors))
        plain = value.copy() if isinstance(value, np.ndarray) else value  # torch takes no negative strides
        tensors[name] = torch.as_tensor(plain).detach().to("cpu", copy=True).contiguous()
        return {"kind": "tensor" if isinstance(value, torch.Tensor) else "array", "of": name}

    if isinstance(value, dict):
        return {"kind": "dict", "of": [[_to_skeleton(k, tensors), _to_skeleton(v, tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {"kind": kind, "of": [_to_skeleton(item, tensors) for item in value]}

    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"cannot save a {type(value).__name__} in a checkpoint")


def _from_skeleton(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Return the state from which `_to_skeleton` made this skeleton and these tensors."""
    if not isinstance(value, dict):
        return value

    kind = value["kind"]
    content = value["of"]
    if kind in ("tensor", "array"):
        return tensors[content] if kind == "tensor" else tensors[content].numpy()
    if kind == "dict":
        return {_from_skeleton(k, tensors): _from_skeleton(v, tensors) for k, v in content}
    items = [_from_skeleton(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items


def save_model(
    model: nn.Module, weights: dict[str, Tensor], tokenizer: PreTrainedTokenizerBase | None, folder: Path, step: int
) -> None:
    """Write weights (tied ones once), configuration and tokenizer, if any; `RunInterrupted` if not finite."""
    tied = getattr(model, "all_tied_weights_keys", {})
    # Copies, because safetensors takes no tensors that share memory: ties of a plain module, parts of a flat buffer
    untied = {name: value.detach() for name, value in weights.items() if name not in tied}
    copies = {name: value.to("cpu", copy=True).contiguous() for name, value in untied.items()}
    for name, value in copies.items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise RunInterrupted(f"{name} is not finite after step {step}: not saved", NOT_FINITE)

    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(model, PreTrainedModel):
        _save_pretrained(model, folder, copies)
    else:  # a plain module, or one that wraps a model (LoRA)
        save_file(copies, folder / "model.safetensors", metadata={"format": "pt"})
    if tokenizer is not None:
        save_tokenizer(tokenizer, folder)


def _save_pretrained(model: PreTrainedModel, folder: Path, weights: dict[str, Tensor]) -> None:
    """Write weights and configuration with `save_pretrained`; the configuration names the precision of the weights."""
    saved_dtypes = {value.dtype for value in weights.values()}
    vars(model)["_weight_conversions"] = None  # else the names of an old checkpoint return: LayerNorm.gamma
    model.save_pretrained(folder, state_dict=dict(weights))
    if saved_dtypes == {torch.float32} and model.dtype != torch.float32:  # `fp32_weights` of a 16-bit model
        model.config.dtype = torch.float32  # stock code loads weights in the precision that this names
        model.config.save_pretrained(folder)


def fp32_weights(model: nn.Module) -> dict[str, Tensor] | None:
    """Gather the fp32 weights that DeepSpeed shards of a 16-bit model, on all ranks; return None for an fp32 model."""
    if all(parameter.dtype == torch.float32 for parameter in model.parameters()):
        return None
    from deepspeed.utils import safe_get_full_fp32_param

    weights: Any = {name: safe_get_full_fp32_param(parameter) for name, parameter in model.named_parameters()}
    return {name: value.cpu() for name, value in weights.items()}


def load_model(model: nn.Module, folder: Path, sharded: bool) -> None:
    """Load the safetensors weights of a checkpoint into a model, whose parameters FSDP may have `sharded`."""
    if not sharded:
        load_weights(model, folder)
        return
    options = sharded_state.StateDictOptions(full_state_dict=True, strict=False)  # the file holds tied weights once
    weights: Any = read_weights(folder)
    sharded_state.set_model_state_dict(model, weights, options=options)


def optimizer_state(model: nn.Module, optimizer: Any, sharded: bool) -> dict:
    """Return the state of an optimizer that accelerate prepared; if FSDP has `sharded` it, whole on rank 0 only."""
    if not sharded:
        return optimizer.state_dict()
    options = sharded_state.StateDictOptions(full_state_dict=True, cpu_offload=True)
    return sharded_state.get_optimizer_state_dict(model, optimizer.optimizer, options=options)


def load_optimizer(model: nn.Module, optimizer: Any, folder: Path, sharded: bool) -> None:
    """Load the `optimizer_state` in a checkpoint into an optimizer, whose model FSDP may have `sharded`."""
    state = load_state(folder / OPTIMIZER)
    if sharded:
        options = sharded_state.StateDictOptions(full_state_dict=True)
        sharded_state.set_optimizer_state_dict(model, optimizer.optimizer, state, options=options)
    else:
        optimizer.load_state_dict(state)


def rank_file(folder: str | Path, rank: int) -> Path:
    """Return the path at which a checkpoint holds the `rank_state` of a rank."""
    return Path(folder) / f"rank_{rank}.safetensors"


def rank_state(resume_state: dict) -> dict:
    """Return what a checkpoint has of one rank: its random generators, and the state that Trainer does not save."""
    generators = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.random.get_rng_state()}
    if torch.cuda.is_available():
        generators["cuda"] = torch.cuda.random.get_rng_state()
    return {"generators": generators, "log": resume_state}


def load_resume_states(folder: str | Path, ranks: Ranks) -> list[dict]:
    """Return the `resume_state` of each rank that this rank continues, with the number of that rank as `rank`.

    It continues itself; where another number of ranks wrote the checkpoint, all of them, whose sums are added up.
    """
    saved_count = len(list(Path(folder).glob("rank_*.safetensors")))
    sources = [ranks.rank] if saved_count == ranks.count else range(max(1, saved_count))
    return [{**load_state(rank_file(folder, rank))["log"], "rank": rank} for rank in sources]


def load_generators(folder: str | Path, rank: int, seed: int) -> None:
    """Set the random generators to this rank's state in a checkpoint; seed them anew where it has none."""
    path = rank_file(folder, rank)
    if not path.is_file():
        step = json.loads((Path(folder) / "trainer_state.json").read_text())["global_step"]
        transformers.set_seed((seed + 7919 * step + rank) % 2**32)  # another one for each step and rank
        return

    generators = load_state(path)["generators"]
    random.setstate(generators["python"])
    np.random.set_state(generators["numpy"])
    torch.random.set_rng_state(generators["torch"])
    if torch.cuda.is_available() and "cuda" in generators:
        torch.cuda.random.set_rng_state(generators["cuda"])


def save_progress(trainer: Trainer, folder: Path) -> None:
    """Write `trainer_state.json`: the step, the log, the best metric, the state of the callbacks."""
    state = trainer.state
    callbacks = [*trainer.callback_handler.callbacks, trainer.control]
    exported: list[Any] = [each for each in callbacks if isinstance(each, ExportableState)]
    state.stateful_callbacks = TrainerState(stateful_callbacks=exported).stateful_callbacks  # state by name
    # Shares as in the command (0.25, not 15 steps): Trainer compares both when the run resumes
    intervals = {name: getattr(trainer.args, name) for name in ("logging_steps", "eval_steps", "save_steps")}
    with replaced_attributes(state, **intervals):
        state.save_to_json(str(folder / "trainer_state.json"))


def process_facts(args: TrainingArguments) -> dict:
    """Return the entries of a manifest on the processes that wrote the checkpoint."""
    return {"world_size": args.world_size, "engine": engine(args), "torch": torch.__version__}


def check_checkpoint_compatible(manifest: dict, args: TrainingArguments) -> None:
    """Raise an `InputError` unless this engine and (under DeepSpeed) number of ranks can resume from a checkpoint."""
    saved_with = manifest.get("engine", "torch")
    current = engine(args)
    if "deepspeed" in (saved_with, current):
        saved_with += f" with world size {manifest.get('world_size', args.world_size)}"
        current += f" with world size {args.world_size}"
    if saved_with != current:
        what = f"the checkpoint was saved with {saved_with}, but this run uses {current}"
        remedy = f"start it with {saved_with}, or start a new run with --model_name_or_path"
        raise InputError(what, where=args.output_dir, remedy=remedy)
