"""What only a GPU can show: steps without waits, bytes of a resumed run, each engine, fine-tuning. `make gpu`."""

import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.downstream import RandomTask, Tokens, make_finetuner
from helpers.trainer_runs import history
from tiny import TinyStore, tiny_config, tiny_tokenizer
from transformers import BertForSequenceClassification, BertForTokenClassification, TrainerCallback

from bert_hf import BertForPreTraining, DataCollatorForPreTraining, PreTrainer, PreTrainingExamples
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.data.examples.samplers import Phase
from bert_hf.errors import RunInterrupted
from bert_hf.models import unpadded_attention
from bert_hf.models.unpadded_batch import pack_layout, unpack_layout
from bert_hf.models.unpadded_encoder import UnpaddedBertModel, with_layout, without_padding
from bert_hf.pretraining.trainer import can_compile
from bert_hf.training.optimization.muon import orthogonalize

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]


def make(folder, *, length=128, dropout=0.1, steps=8, accumulation=1, callbacks=None, **options):
    """A small run with heads of the usual size; 64 examples a step."""
    torch.manual_seed(0)
    shape = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 256, "max_position_embeddings": 512}
    config = tiny_config(dropout, **shape)
    config._attn_implementation = "sdpa"
    defaults = {
        "logging_steps": 1000, "save_strategy": "no", "warmup_steps": 2, "report_to": "none", "disable_tqdm": True,
        "seed": 3, "dataloader_num_workers": 2,
    }  # fmt: skip
    args = PreTrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=64 // accumulation,
        gradient_accumulation_steps=accumulation, **{**defaults, **options},
    )  # fmt: skip
    examples = PreTrainingExamples(TinyStore(documents=400), (Phase(length, None),), seed=1)
    collator = DataCollatorForPreTraining(tiny_tokenizer())
    return PreTrainer(BertForPreTraining(config), args, collator, examples, callbacks=callbacks)


class NoWaits(TrainerCallback):
    """From the third step to the sixth, what waits for the GPU is an error."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step in (3, 6):
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error" if state.global_step == 3 else "default")


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("optim", ["adamw_torch_fused", "bert_adam", "muon"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_step_waits_for_nothing(tmp_path, dropout, optim, accumulation):
    trainer = make(tmp_path, dropout=dropout, optim=optim, accumulation=accumulation, callbacks=[NoWaits()])
    try:
        trainer.train()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(p.isfinite().all() for p in trainer.model.parameters())


class Poison(TrainerCallback):
    """Makes a weight, and so the loss of the fifth step, not finite."""

    def on_step_begin(self, args, state, control, model, **kwargs):
        if state.global_step == 4:
            model.cls.seq_relationship.bias.data.fill_(math.nan)


def test_a_step_that_is_not_finite_is_never_saved(tmp_path):
    options = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 0}
    trainer = make(tmp_path, callbacks=[Poison()], **options)
    with pytest.raises(RunInterrupted, match="step 5: rank 0: loss nan"):
        trainer.train()
    assert not (tmp_path / "checkpoint-5").exists()
    assert (tmp_path / "checkpoint-4").exists()


class Stop(TrainerCallback):
    def on_save(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == 4


@pytest.mark.parametrize(("length", "exact"), [(128, False), (512, True)])
def test_a_resumed_run_has_the_same_bytes(tmp_path, monkeypatch, length, exact):
    """At 512 tokens --full_determinism is given: without it two equal runs differed."""
    options = {
        "length": length,
        "save_strategy": "steps",
        "save_steps": 4,
        "logging_steps": 2,
        "full_determinism": exact,
    }
    for name in ("CUBLAS_WORKSPACE_CONFIG", "CUDA_LAUNCH_BLOCKING", "FLASH_ATTENTION_DETERMINISTIC"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # restored afterwards
        if not os.environ[name]:
            monkeypatch.delenv(name)
    try:
        whole = make(tmp_path / "whole", **options)
        whole.train()
        make(tmp_path / "cut", callbacks=[Stop()], **options).train()
        resumed = make(tmp_path / "cut", **options)
        resumed.train(resume_from_checkpoint=str(tmp_path / "cut/checkpoint-4"))
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False
    for name in ("model", "optimizer"):
        files = [tmp_path / run / f"checkpoint-8/{name}.safetensors" for run in ("whole", "cut")]
        assert files[0].read_bytes() == files[1].read_bytes(), name
    assert history(resumed) == history(whole)


def ragged(device="cuda", rows=24, length=100):
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(3, length + 1, (rows,), generator=generator)
    lengths[0] = length
    mask = (torch.arange(length) < lengths[:, None]).long()
    ids = torch.randint(5, 99, (rows, length), generator=generator)
    return {
        "input_ids": ids.to(device),
        "attention_mask": mask.to(device),
        "token_type_ids": (ids > 50).long().to(device),
    }


@pytest.mark.parametrize("kind", [BertForSequenceClassification, BertForTokenClassification])
@pytest.mark.parametrize("half", [False, True])
def test_the_unpadded_encoder_is_the_stock_one(kind, half):
    torch.manual_seed(0)
    model = kind(tiny_config(0.0, hidden_size=128, num_attention_heads=2, max_position_embeddings=128)).cuda().train()
    results = []
    for unpadded in (False, True):
        with without_padding(model) if unpadded else torch.enable_grad():
            assert isinstance(model.bert, UnpaddedBertModel) == unpadded
            inputs = {name: value.cuda() for name, value in with_layout(model, ragged("cpu")).items()}
            assert ("layout" in inputs) == unpadded
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
                logits = model(**inputs).logits.float()
            if logits.dim() == 3:
                logits = logits[inputs["attention_mask"].bool()]
            model.zero_grad()
            logits.square().sum().backward()
            gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            results.append((logits.detach(), gradient))
    for one, other in zip(*results, strict=True):
        assert (one - other).norm() <= (3e-2 if half else 1e-4) * other.norm()


@pytest.mark.parametrize("task", [RandomTask, Tokens])
def test_a_fine_tuning_trains_and_predicts(tmp_path, task):
    trainer = make_finetuner(tmp_path, task, use_cpu=False, bf16=None)
    trainer.train()
    metrics = trainer.predict_part("test", "test")
    assert math.isfinite(metrics["test_loss"])
    assert trainer.network.device.type == "cuda"


def test_dropout_of_the_flash_kernel_keeps_the_mean():
    batch = ragged()
    tokens = batch["attention_mask"].flatten().nonzero().squeeze(1)
    layout = unpack_layout(
        pack_layout(batch["attention_mask"], tokens[:0], tokens), batch["input_ids"], tokens[:0], tokens
    )
    query, key = (torch.randn(len(tokens), 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    ones = torch.ones_like(query)
    found = [
        unpadded_attention.unpadded_attention(
            query, key, ones, layout, selected_queries=False, dropout=dropout
        ).float()
        for dropout in (0.0, 0.1, 0.1)
    ]
    torch.testing.assert_close(found[0], torch.ones_like(found[0]), atol=1e-2, rtol=0)
    assert abs(found[1].mean().item() - 1) < 1e-2
    assert found[1].std() > 0.01
    assert not torch.equal(found[1], found[2])


@pytest.mark.filterwarnings("default")  # torch.compile's
@pytest.mark.skipif(not can_compile(), reason="needs Triton and a C compiler")
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_compiled_layers_are_the_eager_ones(dropout):
    torch._dynamo.reset()
    torch.manual_seed(0)
    shape = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 256, "num_hidden_layers": 3}
    model = BertForPreTraining(tiny_config(dropout, max_position_embeddings=128, **shape)).cuda().train()
    collator = DataCollatorForPreTraining(tiny_tokenizer(), max_seq_length=96)
    losses = []
    for compiled, batch_number in itertools.product((False, True), range(3)):
        if compiled and batch_number == 0:
            model.compile_layers()
        torch.manual_seed(batch_number)
        rows = [
            {"segment_a": list(range(5, 5 + n + batch_number)), "segment_b": [7] * n, "next_sentence_label": n % 2}
            for n in range(2, 40)
        ]
        batch = {name: value.cuda() for name, value in collator(rows).items()}
        model.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            outputs = model(**batch, losses_only=True)
        loss = outputs.mlm_losses.mean() + outputs.nsp_losses.mean()
        loss.backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        losses.append((loss.detach(), gradient))
    for eager, fused in zip(losses[:3], losses[3:], strict=True):
        assert abs(eager[0] - fused[0]) <= (3e-3 if dropout == 0 else 0.2) * eager[0]
        if dropout == 0:
            assert (eager[1] - fused[1]).norm() <= 3e-2 * eager[1].norm()
    stats = torch._dynamo.utils.counters["stats"]
    assert stats["unique_graphs"] == 3  # an inner layer, the last one, the loss


def test_muon_computes_a_stack_as_each_matrix():
    matrices = torch.randn(6, 256, 64, device="cuda")
    for dtype, most in ((torch.float32, 1e-3), (torch.bfloat16, 3e-2)):
        each = torch.stack([orthogonalize(matrix, dtype) for matrix in matrices]).float()
        together = orthogonalize(matrices, dtype).float()
        assert (each - together).norm() <= most * each.norm()


@pytest.mark.parametrize(("engine", "optim"), [("fsdp2", "muon"), ("zero2", "adamw_torch_fused")])
def test_each_engine_trains_on_one_rank(tmp_path, engine, optim):
    if engine == "zero2":
        pytest.importorskip("deepspeed")
    documents = [f"A sentence of {n} words. And another {n}." for n in range(300)]
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    launch = ["-m", "accelerate.commands.launch", "--config_file", f"configs/accelerate/{engine}.yaml"]
    words = [
        *launch, "--num_processes", "1", "--main_process_port", "0", "recipes/pretrain.py",
        "--train_file", str(tmp_path / "text.txt"), "--vocab_size", "300", "--output_dir", str(tmp_path / "run"),
        "--config_name", "configs/model/tiny.json", "--max_steps", "3", "--per_device_train_batch_size", "8",
        "--optim", optim, "--report_to", "none",
    ]  # fmt: skip
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "run/model.safetensors").exists()
