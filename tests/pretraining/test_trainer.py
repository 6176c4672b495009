import json
import time
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import torch
import transformers
from helpers.trainer_runs import history, make, ready_rows, weights
from safetensors.torch import load_file
from tiny import TinyStore, tiny_config
from transformers import TrainerCallback, TrainingArguments

from bert_hf import BertForPreTraining, DataCollatorForPreTraining, InputError, PreTrainer, PreTrainingExamples
from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.data.examples.objectives import OBJECTIVES, Objective
from bert_hf.data.examples.samplers import Phase
from bert_hf.data.examples.sentence_pairs import EpochPlan
from bert_hf.models import flops
from bert_hf.models.flops import matmul_rate
from bert_hf.pretraining import throughput
from bert_hf.training.checkpoints import checkpoint_files


@pytest.mark.parametrize("stop", [3, 6, 9])
def test_three_lengths_resume_in_each(tmp_path, tokenizer, stop):
    phases = (Phase(16, 4 * 16), Phase(32, 8 * 16), Phase(64, None))

    def trainer(name, stop=None):
        made = make(tmp_path / name, tokenizer, stop=stop)
        made.train_dataset = PreTrainingExamples(TinyStore(), phases, seed=1, batch_length=32)
        return made

    whole = trainer("whole")
    shapes = []
    step = transformers.Trainer.training_step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            transformers.Trainer,
            "training_step",
            lambda self, model, inputs, count=None: (
                shapes.append(tuple(inputs["input_ids"].shape)) or step(self, model, inputs, count)
            ),
        )
        whole.train()
    short, middle, long = shapes[:8], shapes[8:16], shapes[16:]
    assert all(rows == 8 and width <= 16 for rows, width in short)
    assert all(rows == 8 and width <= 32 for rows, width in middle)
    assert all(rows == 4 and width <= 64 for rows, width in long)

    trainer("cut", stop).train()
    resumed = trainer("cut")
    resumed.train(resume_from_checkpoint=str(tmp_path / f"cut/checkpoint-{stop}"))
    for name in ("model", "optimizer"):
        files = [tmp_path / run / f"checkpoint-12/{name}.safetensors" for run in ("whole", "cut")]
        assert files[0].read_bytes() == files[1].read_bytes(), name
    assert history(resumed) == history(whole)


def test_no_pickle_is_written(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, steps=3)
    trainer.train()
    trainer.save_model()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json", ".txt"}
    for path in files:
        start = path.read_bytes()[:4]
        assert not start.startswith((b"\x80\x02", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")), path
    checkpoint_files.verify(tmp_path / "checkpoint-3")


def test_a_missing_optimizer_is_an_error(tmp_path, tokenizer):
    make(tmp_path, tokenizer, steps=3).train()
    (tmp_path / "checkpoint-3/optimizer.safetensors").unlink()
    with pytest.raises(InputError, match=r"checkpoint-3/optimizer\.safetensors: missing"):
        make(tmp_path, tokenizer, steps=6).train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))


def gradient(tmp_path, tokenizer, micro, accumulation, **options):
    """Gradient of the first optimizer step, and masked tokens of its micro-batches."""
    found, counts = {}, []

    class Look(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            found.update({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})

    trainer = make(
        tmp_path / f"{micro}", tokenizer, micro=micro, accumulation=accumulation, steps=1, dropout=0.0,
        max_grad_norm=0.0, save_strategy="no", eval_strategy="no", short=0.8, **options,
    )  # fmt: skip
    trainer.add_callback(Look())
    add = trainer._add_to_log_sums
    trainer._add_to_log_sums = lambda inputs, tasks: (
        counts.append(len(tasks[0].losses)), add(inputs, tasks)
    )  # fmt: skip
    trainer.train()
    return found, counts, [row["loss"] for row in trainer.state.log_history if "loss" in row]


def test_the_gradient_does_not_depend_on_accumulation(tmp_path, tokenizer):
    expected, _, loss = gradient(tmp_path, tokenizer, 64, 1)
    total = torch.cat([g.flatten() for g in expected.values()]).norm()
    for micro, accumulation in ((16, 4), (4, 16)):
        got, counts, got_loss = gradient(tmp_path, tokenizer, micro, accumulation)
        assert max(counts) > {16: 1.05, 4: 1.4}[micro] * min(counts)  # else a mean of means would pass too
        difference = torch.cat([(got[name] - expected[name]).flatten() for name in expected]).norm()
        assert difference <= 1e-5 * total
        for name, value in expected.items():
            assert (got[name] - value).norm() <= 1e-5 * value.norm() + 1e-8 * total, name
        assert got_loss == pytest.approx(loss, rel=1e-6)


def test_the_loss_is_the_mean_over_the_global_batch(tmp_path, tokenizer):
    """The logged loss against a full-head computation on one batch of all sixteen sequences."""
    trainer = make(tmp_path, tokenizer, micro=4, accumulation=4, steps=1, dropout=0.0, logging_steps=1)
    examples, collator = trainer.train_dataset, trainer.data_collator
    batch = collator([examples[number] for number in trainer._get_train_sampler()])
    batch.pop("masked_positions")
    stock = transformers.BertForPreTraining(tiny_config(0.0))
    stock.load_state_dict(trainer.model.state_dict())
    expected = stock.eval()(**batch).loss.item()
    trainer.train()
    row = next(row for row in trainer.state.log_history if "loss" in row)
    assert row["loss"] == pytest.approx(expected, rel=1e-6)
    assert row["mlm_loss"] + row["nsp_loss"] == pytest.approx(expected, rel=1e-6)


def test_a_step_before_training(tmp_path, tokenizer):
    """From Python, without `train`: loss and gradient of a plain backward, and no trace in the run that follows."""
    options = {"steps": 2, "dropout": 0.0, "save_strategy": "no", "eval_strategy": "no", "logging_steps": 1}
    fresh, used = (make(tmp_path / name, tokenizer, **options) for name in ("fresh", "used"))
    batch = next(iter(used.get_train_dataloader()))
    loss = used.training_step(used.model, batch)
    gradients = [parameter.grad.clone() for parameter in used.model.parameters()]

    used.model.zero_grad()
    expected = used.model(**batch).loss
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    for parameter, gradient in zip(used.model.parameters(), gradients, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-5, atol=1e-7)
    for trainer in (used, fresh):
        trainer.train()
    assert history(used) == history(fresh)


def test_evaluation_counts_every_example_once(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, per_device_eval_batch_size=8)
    batch = trainer.data_collator([trainer.eval_dataset[i] for i in range(50)])
    positions = batch.pop("masked_positions")
    with torch.no_grad():
        outputs = trainer.model.eval()(**batch)
    logits = outputs.prediction_logits.flatten(0, 1)[positions]
    labels = batch["labels"].flatten()[positions]
    metrics = trainer.evaluate()
    expected = torch.nn.functional.cross_entropy(logits, labels).item()
    assert metrics["eval_mlm_loss"] == pytest.approx(expected, rel=1e-5)
    assert metrics["eval_mlm_accuracy"] == pytest.approx((logits.argmax(-1) == labels).double().mean().item())
    guesses = outputs.seq_relationship_logits.argmax(-1)
    accuracy = (guesses == batch["next_sentence_label"]).double().mean().item()
    assert metrics["eval_nsp_accuracy"] == pytest.approx(accuracy)
    assert metrics["eval_loss"] == pytest.approx(metrics["eval_mlm_loss"] + metrics["eval_nsp_loss"])
    assert trainer.evaluate()["eval_loss"] == metrics["eval_loss"]  # pairs and masks are fixed


@pytest.mark.parametrize("family", ["ours", "stock"])
def test_it_takes_ready_rows_and_plain_arguments_like_trainer(tmp_path, config, family):
    model = (BertForPreTraining if family == "ours" else transformers.BertForPreTraining)(config)
    args = TrainingArguments(
        str(tmp_path), num_train_epochs=2, per_device_train_batch_size=4, logging_steps=2, report_to="none",
        use_cpu=True, disable_tqdm=True, eval_strategy="epoch",
    )  # fmt: skip
    trainer = PreTrainer(model, args, transformers.default_data_collator, ready_rows(), ready_rows(8))
    trainer.train()
    assert trainer.state.global_step == 12
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert np.isfinite(losses).all()
    assert "eval_nsp_accuracy" in trainer.state.log_history[-2]


def test_an_iterable_dataset_is_trained_and_evaluated_as_a_list(tmp_path, tokenizer):
    args = TrainingArguments(str(tmp_path), max_steps=1, logging_steps=1, use_cpu=True)
    rows = datasets.Dataset.from_list(ready_rows(8)).to_iterable_dataset()
    trainer = PreTrainer(BertForPreTraining(tiny_config(0.0)), args, DataCollatorForPreTraining(tokenizer), rows, rows)
    losses = [trainer.evaluate(ready_rows(8))["eval_loss"], trainer.evaluate()["eval_loss"]]
    trainer.train()
    assert losses == pytest.approx([trainer.state.log_history[0]["loss"]] * 2)


def test_each_trial_of_a_search_loads_its_best_model(tmp_path, config):
    args = TrainingArguments(
        str(tmp_path), eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True, use_cpu=True
    )
    trainer = PreTrainer(None, args, None, *[ready_rows(8)] * 2, model_init=lambda: BertForPreTraining(config))
    trainer._get_output_dir = lambda trial: str(tmp_path / "run-3")
    trainer.model = None  # as after an earlier trial
    trainer.train()
    assert trainer.state.best_model_checkpoint.startswith(str(tmp_path / "run-3/checkpoint-"))


def test_masked_lm_alone(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, steps=2, logging_steps=1, phases=False, eval_strategy="no")
    trainer.train_dataset = PreTrainingExamples(TinyStore(), (Phase(32, None),), nsp=False)
    trainer.data_collator = DataCollatorForPreTraining(tokenizer, nsp=False)
    trainer.train()
    row = trainer.state.log_history[0]
    assert row["loss"] == pytest.approx(row["mlm_loss"], rel=1e-5)
    assert "nsp_loss" not in row

    trainer.data_collator = DataCollatorForPreTraining(tokenizer)
    with pytest.raises(InputError, match="no next_sentence_label; pass nsp=False"):
        trainer.train()


def test_two_trainers_of_one_object_of_arguments(tmp_path, tokenizer, config):
    args = PreTrainingArguments(str(tmp_path), num_train_epochs=1, use_cpu=True, report_to="none")
    for store in (TinyStore(), TinyStore(documents=80)):
        examples = PreTrainingExamples(store, (Phase(32, None),))
        collator = DataCollatorForPreTraining(tokenizer)
        trainer = PreTrainer(BertForPreTraining(config), args, collator, examples)
        assert trainer.processing_class.model_max_length == config.max_position_embeddings
        stock = TrainingArguments(str(tmp_path), save_strategy="epoch", use_cpu=True)
        with pytest.raises(InputError, match="--save_strategy: epoch"):
            PreTrainer(trainer.model, stock, collator, examples)
        assert trainer.args.max_steps == round(examples.epoch_length(0, 0) / args.train_batch_size)


def swap_half(documents, chunks, target, max_tokens, rng):
    """Sentence-order prediction (ALBERT): B follows A, or the two are swapped."""
    _, start, end = chunks[:, chunks[2] - chunks[1] > 1]
    cut = rng.integers(start + 1, end)
    swapped = rng.random(len(start)) < 0.5
    a = np.where(swapped, cut, start), np.where(swapped, end, cut)
    b = np.where(swapped, start, cut), np.where(swapped, cut, end)
    return EpochPlan(*a, *b, swapped.astype(np.int64))


def test_another_objective_is_one_entry(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "sop", Objective(swap_half, "sop"))
    trainer = make(tmp_path, tokenizer, steps=2, logging_steps=1, phases=False, eval_strategy="no")
    trainer.train_dataset = PreTrainingExamples(TinyStore(), (Phase(32, None),), nsp="sop")
    trainer.eval_dataset = PreTrainingExamples(TinyStore(seed=2), (Phase(32, None),), nsp="sop", limit=50)
    trainer.train()
    row = trainer.state.log_history[0]
    assert row["loss"] == pytest.approx(row["mlm_loss"] + row["sop_loss"], rel=1e-5)
    assert trainer.evaluate()["eval_sop_accuracy"] > 0


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16), ("no", torch.float32)]
)
def test_speed_and_mfu_are_logged(tmp_path, tokenizer, monkeypatch, precision, dtype):
    """The peak is measured in the precision of the run, and its time is not the run's."""
    late, asked = SimpleNamespace(seconds=0.0), []

    def measure(device, dtype):
        late.seconds += 1e6
        asked.append(dtype)
        return 1e11

    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + late.seconds)
    monkeypatch.setattr(throughput, "time", clock)
    monkeypatch.setattr(flops, "matmul_rate", measure)
    trainer = make(tmp_path, tokenizer, steps=5, include_num_input_tokens_seen=True)
    metrics = trainer.train().metrics
    assert "train_runtime" not in trainer.state.log_history[0]  # Trainer's own speed counts padding
    assert metrics["train_tokens_per_second"] > 0
    assert 0 < metrics["train_mfu"] < 1
    assert trainer._throughput.whole_run["seconds"] < 1e5

    monkeypatch.setattr(type(trainer.accelerator), "mixed_precision", precision)
    trainer._measure_peak_flops()
    assert asked == [torch.float32, dtype]


def test_a_product_is_measured():
    assert 1e6 < matmul_rate(torch.device("cpu"), torch.float32) < 1e15


def test_weights_on_disk_are_the_trained_ones(tmp_path, tokenizer):
    trainer = make(tmp_path, tokenizer, steps=3)
    trainer.train()
    saved = load_file(tmp_path / "checkpoint-3/model.safetensors")
    for name, value in saved.items():
        assert torch.equal(value, weights(trainer)[name])
    state = json.loads((tmp_path / "checkpoint-3/trainer_state.json").read_text())
    assert state["global_step"] == 3
