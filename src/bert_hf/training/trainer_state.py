"""transformers' Trainer with checkpoints that are verified transactions of safetensors and JSON: no pickle."""

import functools
import json
import random
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
import transformers
from torch import nn
from transformers import PreTrainedModel, Trainer
from transformers.trainer_callback import ExportableState

from bert_hf.config.hardware import engine
from bert_hf.config.precision import settle_precision
from bert_hf.errors import NOT_FINITE, InputError, RunInterrupted
from bert_hf.models.loading import load_weights, read_weights
from bert_hf.training import checkpointing, state_file
from bert_hf.training.distributed import Ranks

OPTIMIZER, SCHEDULER, SCALER = "optimizer.safetensors", "scheduler.safetensors", "scaler.safetensors"


class StoredTrainer(Trainer):
    """The stock Trainer, but a checkpoint is a verified transaction, and no file that holds a pickle is written.

    Takes what `Trainer` takes. `facts` (dict) is recorded in each checkpoint's manifest.
    """

    def __init__(self, model=None, args=None, *positional, facts: dict | None = None, **kwargs):
        if args is not None and args.bf16 is None:  # a recipe has settled it
            settle_precision(args, getattr(getattr(model, "config", None), "hidden_size", None))
        super().__init__(model, args, *positional, **kwargs)
        self.facts = facts or {}
        self._ranks = Ranks(self.args.process_index, self.args.world_size)
        self._beside: Path | None = None  # where the checkpoint lies that the run goes on from
        self._good: set[str] = set()  # checkpoints that this process wrote or verified

    # ---- writing
    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        """Model, configuration and tokenizer; the stock method also pickles the arguments, a token included."""
        if not self.args.should_save:
            return
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        if not isinstance(model, PreTrainedModel):
            raise TypeError(f"only a PreTrainedModel can be saved, not {type(model).__name__}")
        for name, value in (state_dict or model.state_dict()).items():
            if value.is_floating_point() and not torch.isfinite(value).all():
                raise RunInterrupted(
                    f"{name} is not finite after step {self.state.global_step}: not saved", NOT_FINITE
                )
        model.save_pretrained(folder, state_dict=state_dict)
        if self.processing_class is not None:
            self.processing_class.save_pretrained(folder)

    def _save_checkpoint(self, model: nn.Module, trial) -> None:
        self.store_flos()
        run, name = Path(self._get_output_dir(trial)), f"checkpoint-{self.state.global_step}"
        temporary, final = run / (checkpointing.TEMPORARY + name), run / name
        if self.state.best_global_step:
            best = run / f"checkpoint-{self.state.best_global_step}"
            if best == final or best.is_dir():
                self.state.best_model_checkpoint = str(best)
        # Each part is agreed on: who failed in one must not leave the others alone in the collectives of the next.
        parts = [self._begin_checkpoint, self._write_weights, self._write_optimizer, self._write_state]
        try:
            for part in parts:
                self._ranks.run_on_all_ranks(functools.partial(part, temporary))
            self._ranks.run_on_all_ranks(lambda: self._commit_checkpoint(temporary, final))
        except (Exception, RunInterrupted):
            if self.args.should_save:
                checkpointing.discard(temporary)
            raise

    def _begin_checkpoint(self, temporary: Path) -> None:
        if self.args.should_save:
            checkpointing.discard(temporary)
            temporary.mkdir(parents=True)

    def _write_weights(self, temporary: Path) -> None:
        self.save_model(str(temporary), _internal_call=True)

    def _write_optimizer(self, temporary: Path) -> None:
        if not self.args.save_only_model:
            self._save_optimizer_and_scheduler(str(temporary))

    def _write_state(self, temporary: Path) -> None:
        if not self.args.save_only_model:
            self._save_scaler(str(temporary))
            self._save_rng_state(str(temporary))
        if self.args.should_save:
            self._export_callbacks()
            self.state.save_to_json(str(temporary / "trainer_state.json"))

    def _commit_checkpoint(self, temporary: Path, final: Path) -> None:
        if self.args.should_save:
            machine = {"world_size": self.args.world_size, "engine": engine(self.args)}
            facts = {"step": self.state.global_step, **machine, **_versions(), **self.facts}
            checkpointing.commit(temporary, final, facts)
            self._good.add(final.name)
            best = self.state.best_model_checkpoint
            checkpointing.rotate(final.parent, self.args.save_total_limit, self._good, spared=best)

    def _export_callbacks(self) -> None:
        """Brings the state of the stateful callbacks into `self.state`, as the stock method does."""
        for callback in [*self.callback_handler.callbacks, self.control]:
            if isinstance(callback, ExportableState):
                name, state = type(callback).__name__, callback.state()
                if isinstance(self.state.stateful_callbacks.get(name), list):
                    self.state.stateful_callbacks[name].append(state)
                else:
                    self.state.stateful_callbacks[name] = state

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        folder = Path(output_dir)
        if self.is_deepspeed_enabled:  # DeepSpeed's own files: the documented exception (they hold pickles)
            self.model_wrapped.save_checkpoint(output_dir)
        else:
            state = self._optimizer_state()
            if self.args.should_save:
                state_file.save_state(folder / OPTIMIZER, state)
        if self.args.should_save:
            state_file.save_state(folder / SCHEDULER, self.lr_scheduler.state_dict())

    def _optimizer_state(self) -> dict:
        if not self.is_fsdp_enabled:
            return self.optimizer.state_dict()
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return get_optimizer_state_dict(self.model, self.optimizer.optimizer, options=whole)

    def _save_scaler(self, output_dir: str) -> None:
        scaler = getattr(self.accelerator, "scaler", None)
        if scaler is not None and self.args.should_save:
            state_file.save_state(Path(output_dir) / SCALER, scaler.state_dict())

    def _rank_file(self, folder: str | Path, rank: int | None = None) -> Path:
        return Path(folder) / f"rank_{self.args.process_index if rank is None else rank}.safetensors"

    def _save_rng_state(self, output_dir: str) -> None:
        generators = {
            "python": random.getstate(),
            "numpy": np.random.get_state(),
            "torch": torch.random.get_rng_state(),
        }
        if torch.cuda.is_available():
            generators["cuda"] = torch.cuda.random.get_rng_state()
        state_file.save_state(self._rank_file(output_dir), {"generators": generators, "log": self._log_state()})

    def _log_state(self) -> dict:
        """What the log needs of the steps before the checkpoint."""
        return {}

    def _places(self) -> list[Path]:
        """Where checkpoints of this run may lie: its folder, and that of the one it goes on from."""
        return [Path(self.args.output_dir), *([self._beside] if self._beside else [])]

    # ---- reading
    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Weights, from safetensors alone; the stock method also takes a pickle, or what any index names."""
        model, folder = self.model if model is None else model, Path(resume_from_checkpoint)
        if not self.is_fsdp_enabled:
            return load_weights(model, folder)
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        whole = StateDictOptions(full_state_dict=True, strict=False)  # tied weights stand in the file once
        set_model_state_dict(model, read_weights(folder), options=whole)

    def _load_best_model(self) -> None:
        """From this run's folder: `trainer_state.json` may name any, and the run may have been moved."""
        name = Path(self.state.best_model_checkpoint).name
        best = next((place / name for place in self._places() if (place / name).is_dir()), self._places()[0] / name)
        if best.name not in self._good:
            checkpointing.verify(best)
        if self.is_deepspeed_enabled:
            return super()._load_best_model()
        self._load_from_checkpoint(str(best))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        folder = Path(checkpoint)
        self.lr_scheduler.load_state_dict(state_file.load_state(folder / SCHEDULER))
        if self.is_deepspeed_enabled:
            return
        state = state_file.load_state(folder / OPTIMIZER)
        if self.is_fsdp_enabled:
            from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

            whole = StateDictOptions(full_state_dict=True)
            set_optimizer_state_dict(self.model, self.optimizer.optimizer, state, options=whole)
        else:
            self.optimizer.load_state_dict(state)

    def _load_scaler(self, checkpoint: str | None) -> None:
        scaler = getattr(self.accelerator, "scaler", None)
        if checkpoint is not None and scaler is not None:
            scaler.load_state_dict(state_file.load_state(Path(checkpoint) / SCALER))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        path = self._rank_file(checkpoint)
        if not path.is_file() and self._rank_file(checkpoint, 0).is_file():  # written by fewer ranks
            step = json.loads((Path(checkpoint) / "trainer_state.json").read_text())["global_step"]
            transformers.set_seed((self.args.seed + 7919 * step + self.args.process_index) % 2**32)
            return
        generators = state_file.load_state(path)["generators"]
        random.setstate(generators["python"])
        np.random.set_state(generators["numpy"])
        torch.random.set_rng_state(generators["torch"])
        if torch.cuda.is_available() and "cuda" in generators:
            torch.cuda.random.set_rng_state(generators["cuda"])


def check_checkpoint_compatible(manifest: dict, args) -> None:
    """Refuses a checkpoint that this number of ranks or this engine cannot go on from.

    Raises:
        InputError: names both layouts.
    """
    was, now = manifest.get("engine", "torch"), engine(args)
    ranks = manifest.get("world_size", args.world_size)
    if was != now:
        raise InputError(f"its checkpoint was written under {was}, and this run uses {now}", where=args.output_dir,
                         remedy=f"start it under {was}, or begin anew with --model_name_or_path")  # fmt: skip
    if now == "deepspeed" and ranks != args.world_size:
        raise InputError(
            f"DeepSpeed's checkpoint of {ranks} ranks cannot be read by {args.world_size}",
            where=args.output_dir,
            remedy=f"start it with {ranks} ranks, or convert it with deepspeed.checkpoint.ds_to_universal",
        )


def _versions() -> dict[str, str]:
    return {"bert_hf": version("bert-hf"), "torch": torch.__version__, "transformers": transformers.__version__}
