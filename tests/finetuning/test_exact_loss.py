"""The gradient of a fine-tuning step is that of the mean over all labels of the global batch, in every layout."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from accelerate.data_loader import BatchSamplerShard
from finetuning_layout_worker import LARGE, epochs, gradients
from helpers.child_processes import ROOT, launch_ranks
from helpers.downstream import RANDOM_HEADS, Classes, Spans, Tokens, Weighted, collate, make_finetuner, make_model
from safetensors.torch import load_file
from torch.utils.data import BatchSampler
from transformers import TrainingArguments

from bert_hf.training.repeated_rows import without_repeated_rows


def distance(one: dict, other: dict, task: str) -> float:
    """‖g − g′‖ / ‖g‖ over all parameters of a task."""
    names = [name for name in one if name.startswith(f"{task}/")]
    assert names
    difference = sum(float((one[name] - other[name]).square().sum()) for name in names)
    return (difference / sum(float(one[name].square().sum()) for name in names)) ** 0.5


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Gradients of 32 rows in one batch."""
    return gradients(tmp_path_factory.mktemp("whole"), 32, 1)


@pytest.fixture(scope="module")
def accumulated(tmp_path_factory):
    return gradients(tmp_path_factory.mktemp("accumulated"), 8, 4)


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory):
    return launch(tmp_path_factory.mktemp("ranks"), "cpu_ddp", 16, 1)


def launch(folder: Path, machine: str, micro: int, accumulation: int) -> dict[str, torch.Tensor]:
    """Gradients of a run of two ranks."""
    worker = ROOT / "tests/finetuning_layout_worker.py"
    done, log = launch_ranks(folder / "log", worker, folder, str(micro), str(accumulation), machine=machine)
    assert done == 0, log[-3000:]
    return load_file(folder / "rank_0.safetensors")


@pytest.mark.parametrize("head", RANDOM_HEADS)
def test_accumulation_changes_nothing(whole, accumulated, head):
    assert distance(whole, accumulated, head.__name__) <= 1e-5


@pytest.mark.parametrize("head", RANDOM_HEADS)
def test_ranks_change_nothing(whole, on_ranks, head):
    assert distance(whole, on_ranks, head.__name__) <= 1e-5


def test_weighted_classes_have_the_gradient_of_torch(whole, tmp_path):
    trainer = make_finetuner(tmp_path, Weighted)
    model = make_model(trainer.head)
    batch = collate(trainer.task.parts["train"][:32])
    labels = batch.pop("labels")
    torch.nn.CrossEntropyLoss(Weighted.weights)(model(**batch).logits, labels).backward()
    expected = {f"Weighted/{name}": value.grad for name, value in model.named_parameters() if value.grad is not None}
    assert distance(expected, whole, "Weighted") <= 1e-5


@pytest.fixture(scope="module")
def whole_epoch(tmp_path_factory):
    """Updates of an epoch in batches of 32, the last one of four rows."""
    return epochs(tmp_path_factory.mktemp("epoch"), 32, 1)


@pytest.mark.parametrize("task", [*(head.__name__ for head in RANDOM_HEADS), "PreTraining"])
def test_the_last_batch_of_an_epoch_repeats_no_row_on_ranks(whole_epoch, on_ranks, task):
    """Rank 0 has the four rows of the second step, rank 1 none; accelerate gives them 16 rows each."""
    assert distance(whole_epoch, on_ranks, f"epoch-{task}") <= 1e-5


@pytest.mark.parametrize(
    ("rows", "size", "ranks"), [(17, 8, 2), (36, 5, 3), (5, 4, 4), (1, 2, 3), (24, 4, 2), (23, 4, 2)]
)
def test_each_row_counts_once_on_any_number_of_ranks(rows, size, ranks):
    state = SimpleNamespace(end_of_dataloader=False)

    def loader(rank):
        batches = list(BatchSamplerShard(BatchSampler(range(rows), size, drop_last=False), ranks, rank))
        for number, batch in enumerate(batches):
            state.end_of_dataloader = number == len(batches) - 1
            yield {"input_ids": torch.zeros(len(batch), 1), "labels": torch.tensor(batch)}

    counted = []
    for rank in range(ranks):
        args = TrainingArguments("unused", per_device_train_batch_size=size, use_cpu=True)
        args = SimpleNamespace(**{**vars(args), "world_size": ranks, "process_index": rank})
        accelerator = SimpleNamespace(gradient_state=state)
        trainer = SimpleNamespace(args=args, train_dataset=range(rows), accelerator=accelerator)
        found = [batch["labels"] for batch in without_repeated_rows(trainer, loader(rank))]
        assert all(len(batch) for batch in found)  # every rank takes part in each step
        counted += [int(row) for batch in found for row in batch if row != -100]
    assert sorted(counted) == list(range(rows))


@pytest.mark.slow
def test_zero_changes_nothing(whole, tmp_path):
    sharded = launch(tmp_path, "cpu_zero2", 16, 1)
    for head in RANDOM_HEADS:
        assert distance(whole, sharded, head.__name__) <= 1e-5, head.__name__


@pytest.mark.parametrize("head", [Classes, Tokens])
def test_a_last_group_of_fewer_and_smaller_batches(tmp_path, head):
    """36 rows: five batches of 8, 8, 8, 8 and 4 rows in place of eight of 8."""
    updates = []
    for micro, accumulation in ((36, 1), (8, 8)):
        trainer = make_finetuner(
            tmp_path / str(micro), head, learning_rate=LARGE, weight_decay=0.0, num_train_epochs=1,
            per_device_train_batch_size=micro, gradient_accumulation_steps=accumulation,
        )  # fmt: skip
        trainer.train()
        assert trainer.state.global_step == 1
        before = make_model(trainer.head).state_dict()
        after = trainer.network.state_dict()
        updates.append({f"{head.__name__}/{name}": before[name] - after[name] for name in before})
    assert distance(*updates, head.__name__) <= 1e-5


@pytest.mark.parametrize("head", RANDOM_HEADS)
def test_the_stock_trainer_fails_the_same_test(tmp_path, whole, head):
    """With the stock loss of the stock class.

    Only Trainer's division is right for answers to questions, whose batch has no `labels`: there the stock loss takes
    padding for a choice, so that it depends on the width of the batch.
    """
    task = make_finetuner(tmp_path / "data", head).task
    model = make_model(task.head)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=1, per_device_train_batch_size=8, gradient_accumulation_steps=4,
        learning_rate=LARGE, optim="sgd", max_grad_norm=0.0, lr_scheduler_type="constant", use_cpu=True,
        train_sampling_strategy="sequential", report_to="none", disable_tqdm=True, remove_unused_columns=False,
    )  # fmt: skip

    def collate(rows):
        batch = task.head.collate(rows)
        batch.pop("choices", None)
        if head is Spans:
            batch["start_positions"], batch["end_positions"] = batch.pop("labels").unbind(1)
        return batch

    transformers.Trainer(model, args, collate, task.encoded("train").features).train()
    update = {f"{head.__name__}/{name}": (before[name] - value) / LARGE for name, value in model.state_dict().items()}
    assert distance(whole, update, head.__name__) > 1e-2
