"""The output folder of a run: what is removed from it."""

import json
from types import SimpleNamespace

import pytest

from bert_hf.config.training_arguments import PreTrainingArguments
from bert_hf.errors import InputError
from bert_hf.training import output_folder
from bert_hf.training.checkpoints import checkpoint_files
from bert_hf.training.distributed import Ranks
from bert_hf.training.run import Run, start_run


def started(args, identity, *options):
    """A run that `start_run` began, after its process has ended."""
    try:
        return start_run(args, identity, *options)
    finally:
        output_folder.release_lock()


def test_overwriting_removes_the_files_that_the_run_wrote_and_no_other(tmp_path):
    quiet = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False}
    (tmp_path / ".null_odds.json.tmp").write_text("left by a process that was killed")
    old = started(PreTrainingArguments(**quiet), {"seed": 1})
    (tmp_path / "notes.tsv").write_text("a user's")
    with old.writing() as folder:
        (folder / "predictions.conll").write_text("old")
        (folder / "submission").mkdir()
        (folder / "submission/MRPC.tsv").write_text("old")
    with old.writing(public=["loss.png"]) as folder:
        (folder / "loss.png").write_text("old")
        (folder / "mistakes.csv").write_text("old")
        make_checkpoint(folder, {"seed": 1})
    assert old.files == {
        "predictions.conll": False, "submission/MRPC.tsv": False, "loss.png": True, "mistakes.csv": False
    }  # fmt: skip
    (tmp_path / "predictions.md").write_text("a user's")

    record = json.loads((tmp_path / "run.json").read_text())
    outside = tmp_path.with_name(f"{tmp_path.name}-outside")
    outside.write_text("not in the folder")
    (tmp_path / "run.json").write_text(
        json.dumps({**record, "files": {**record["files"], f"../{outside.name}": True}})
    )
    new = started(PreTrainingArguments(**quiet, overwrite_output_dir=True), {"seed": 2})
    assert new.files == {}
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"notes.tsv", "predictions.md", "run.json", output_folder.LOCK}
    assert outside.exists()


def make_checkpoint(folder, identity: dict) -> str:
    """A committed checkpoint without files, in the folder of a run."""
    (folder / "temporary").mkdir()
    facts = {"step": 3, "world_size": 1, "identity": identity}
    checkpoint_files.commit(folder / "temporary", folder / "checkpoint-3", facts)
    return str(folder / "checkpoint-3")


@pytest.fixture
def begin(tmp_path):
    """Starts a run in a folder that holds a finished one; returns how it begins."""
    run = Run(tmp_path, {"seed": 1}, finished=True)
    with run.writing(public=True):
        (tmp_path / "model.safetensors").write_text("weights")

    def start(seed, options=(), **changes):
        args = PreTrainingArguments(str(tmp_path), use_cpu=True, bf16=False, overwrite_output_dir=True, **changes)
        return started(args, {"seed": seed}, *options)

    return start


def test_overwriting_keeps_the_run_of_the_same_command(tmp_path, begin):
    assert begin(1).finished
    assert (tmp_path / "model.safetensors").exists()

    assert begin(2).checkpoint is None  # another run, whose folder this now is
    assert not (tmp_path / "model.safetensors").exists()
    checkpoint = make_checkpoint(tmp_path, {"seed": 2})
    assert begin(2).checkpoint == checkpoint


@pytest.mark.parametrize("name", ["model_name_or_path", "train_file", "resume_from_checkpoint"])
def test_overwriting_never_removes_an_input(tmp_path, begin, name):
    inputs = {
        "model_name_or_path": str(tmp_path),
        "train_file": [f"{tmp_path}/*.safetensors"],
        "resume_from_checkpoint": make_checkpoint(tmp_path, {"seed": 2}),
    }

    with pytest.raises(InputError, match=f"--{name}: .* is inside the output folder"):
        begin(2, [SimpleNamespace(**{name: inputs[name]})])
    assert (tmp_path / "model.safetensors").exists()
    assert (tmp_path / "checkpoint-3").exists()


def test_overwriting_checks_the_named_checkpoint_first(tmp_path, begin):
    with pytest.raises(InputError, match="nowhere"):
        begin(2, resume_from_checkpoint=str(tmp_path.parent / "nowhere/checkpoint-3"))
    assert (tmp_path / "model.safetensors").exists()


def test_a_named_checkpoint_is_of_the_same_run_which_may_be_longer(tmp_path):
    schedule = {"max_steps": 6, "num_train_epochs": 3.0, "warmup_steps": 2}
    recorded = {"seed": 3, "optimizer": {"learning_rate": 1e-3}, "schedule": schedule}
    named = make_checkpoint(tmp_path, recorded)

    def begin(folder, **changed):
        args = PreTrainingArguments(str(tmp_path / folder), resume_from_checkpoint=named, use_cpu=True, bf16=False)
        longer = {"max_steps": 60, "num_train_epochs": 1.0, "warmup_steps": 2}
        return started(args, {**recorded, "schedule": longer, **changed}).checkpoint

    assert begin("longer") == named
    line = r"checkpoint-3: the checkpoint belongs to another run: optimizer differ \(learning_rate: 0.1, was 0.001\); "
    with pytest.raises(InputError, match=line):
        begin("rate", optimizer={"learning_rate": 1e-1})
    with pytest.raises(InputError, match="another run: schedule differ"):
        begin("warmup", schedule={"max_steps": 6, "num_train_epochs": 3.0, "warmup_steps": 3})


def test_the_best_checkpoint_of_the_run_that_goes_on_elsewhere_is_copied(tmp_path):
    for step in (2, 3):
        temporary = tmp_path / "temporary"
        temporary.mkdir()
        (temporary / "trainer_state.json").write_text('{"best_global_step": 2}')
        checkpoint_files.commit(temporary, tmp_path / f"checkpoint-{step}", {"step": step, "world_size": 1})
    checkpoints = checkpoint_files.RunCheckpoints(tmp_path / "longer", Ranks(0, 1))
    assert checkpoints.choose(tmp_path / "checkpoint-3") == str(tmp_path / "checkpoint-3")
    assert checkpoint_files.verify(tmp_path / "longer/checkpoint-2")["step"] == 2


def test_the_line_about_a_longer_run_names_the_checkpoint_to_continue(tmp_path):
    schedule = {"max_steps": 20, "num_train_epochs": 3.0, "warmup_steps": 2}
    recorded = {"seed": 3, "schedule": schedule}
    named = make_checkpoint(tmp_path, recorded)
    Run(tmp_path, recorded, finished=True).record()

    def hint(**changed) -> str:
        args = PreTrainingArguments(str(tmp_path), use_cpu=True, bf16=False)
        with pytest.raises(InputError) as caught:
            started(args, {**recorded, **changed})
        return caught.value.remedy

    continued = f"--resume_from_checkpoint {named}"
    assert continued in hint(schedule={**schedule, "max_steps": 30})
    assert continued not in hint(schedule={**schedule, "max_steps": 30}, seed=4)


def test_a_run_with_phases_does_not_become_longer(tmp_path):
    examples = {"long_seq_length": 64}
    recorded = {"seed": 3, "schedule": {"max_steps": 6, "warmup_steps": 2}, "examples": examples}
    named = make_checkpoint(tmp_path, recorded)
    args = PreTrainingArguments(str(tmp_path / "out"), resume_from_checkpoint=named, use_cpu=True, bf16=False)
    assert started(args, recorded).checkpoint == named

    args.output_dir = str(tmp_path / "longer")
    with pytest.raises(InputError, match=r"another run: schedule differ \(max_steps: 60, was 6\)"):
        started(args, {**recorded, "schedule": {"max_steps": 60, "warmup_steps": 2}})
