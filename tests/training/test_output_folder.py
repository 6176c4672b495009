"""The output folder of a run: what is removed from it."""

import os

import pytest

from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.errors import InputError
from bert_hf.training import output_folder
from bert_hf.training.checkpoints import checkpoint_files


def test_overwriting_removes_every_file_of_any_recipe_and_no_other(tmp_path):
    ours = {
        "predictions.json", "nbest_predictions.json", "null_odds.json", "predictions.conll", "test_predictions.tsv",
        "test_predictions.json", "test_null_odds.json", "features-0a.npy", "features-0b.npy.partial",
        "submission/MRPC.tsv",
        ".nbest_predictions.json.tmp", ".null_odds.json.tmp", ".test_predictions.tsv.tmp",
        ".predictions.conll.tmp",
    }  # fmt: skip
    (tmp_path / "submission").mkdir()
    for name in {*ours, "notes.tsv", "predictions.md"}:
        (tmp_path / name).write_text("old")
    output_folder.write_record(tmp_path, {"seed": 1}, finished=True)
    args = PreTrainingArguments(output_dir=str(tmp_path), use_cpu=True, bf16=False, overwrite_output_dir=True)
    output_folder.start(args, {"seed": 2})
    output_folder.release_lock()

    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"notes.tsv", "predictions.md", output_folder.RUN_RECORD, output_folder.LOCK}


def test_a_named_checkpoint_is_of_the_same_run_which_may_be_longer(tmp_path):
    schedule = {"max_steps": 6, "num_train_epochs": 3.0, "warmup_steps": 2}
    recorded = {"seed": 3, "optimizer": {"learning_rate": 1e-3}, "schedule": schedule}
    (tmp_path / "temporary").mkdir()
    checkpoint_files.commit(
        tmp_path / "temporary", tmp_path / "checkpoint-3", {"step": 3, "world_size": 1, "identity": recorded}
    )
    named = str(tmp_path / "checkpoint-3")

    def begin(folder, **changed):
        args = PreTrainingArguments(str(tmp_path / folder), resume_from_checkpoint=named, use_cpu=True, bf16=False)
        longer = {"max_steps": 60, "num_train_epochs": 1.0, "warmup_steps": 2}
        try:
            return output_folder.start(args, {**recorded, "schedule": longer, **changed}).checkpoint
        finally:
            output_folder.release_lock()

    assert begin("longer") == named
    line = r"checkpoint-3: the checkpoint is of another run: optimizer differ \(learning_rate: 0.1, was 0.001\); "
    with pytest.raises(InputError, match=line):
        begin("rate", optimizer={"learning_rate": 1e-1})
    with pytest.raises(InputError, match="another run: schedule differ"):
        begin("warmup", schedule={"max_steps": 6, "num_train_epochs": 3.0, "warmup_steps": 3})


def test_a_run_with_phases_does_not_become_longer(tmp_path):
    examples = {"seq_length_warmup": ["64:0.5"]}
    recorded = {"seed": 3, "schedule": {"max_steps": 6, "warmup_steps": 2}, "examples": examples}
    (tmp_path / "temporary").mkdir()
    checkpoint_files.commit(
        tmp_path / "temporary", tmp_path / "checkpoint-3", {"step": 3, "world_size": 1, "identity": recorded}
    )
    named = str(tmp_path / "checkpoint-3")
    args = PreTrainingArguments(str(tmp_path / "out"), resume_from_checkpoint=named, use_cpu=True, bf16=False)
    try:
        assert output_folder.start(args, recorded).checkpoint == named
    finally:
        output_folder.release_lock()

    args.output_dir = str(tmp_path / "longer")
    with pytest.raises(InputError, match=r"another run: schedule differ \(max_steps: 60, was 6\)"):
        output_folder.start(args, {**recorded, "schedule": {"max_steps": 60, "warmup_steps": 2}})
    output_folder.release_lock()


def test_a_full_disk_does_not_fail_the_release_of_the_lock(tmp_path):
    output_folder.take_lock(tmp_path)
    output_folder._lock.write("a name")
    os.close(output_folder._lock.fileno())  # what is still in the buffer cannot be written
    output_folder.release_lock()
    assert output_folder._lock is None

    output_folder.take_lock(tmp_path)
    assert (tmp_path / output_folder.LOCK).read_text().startswith(f"process {os.getpid()} on ")
    output_folder.release_lock()
