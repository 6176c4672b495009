"""A corpus and a checkpoint that version 0.1.0 wrote are read today, and the run ends as it would have ended then."""

import hashlib
import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import transformers

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").is_file())
OLD_RUN = ROOT / "tests/fixtures/run_0.1"
COMMANDS = json.loads((OLD_RUN / "commands.json").read_text())
EXPECTED = json.loads((OLD_RUN / "expected.json").read_text())


class FinishedSteps(transformers.TrainerCallback):
    """The number of each step that this process finished."""

    def __init__(self):
        self.numbers = []

    def on_step_end(self, args, state, control, **kwargs) -> None:
        self.numbers.append(state.global_step)


@pytest.fixture
def old_run(tmp_path, monkeypatch):
    """A copy of the folder, which is the working directory: all paths of the commands are relative."""
    shutil.copytree(OLD_RUN, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def recipe(name: str):
    """`main` of a recipe."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"recipes/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def machine() -> dict[str, str]:
    """Everything but the code that decides the bytes of a run."""
    info = Path("/proc/cpuinfo")
    models = re.findall(r"^model name\s*:\s*(.*)$", info.read_text(), re.MULTILINE) if info.is_file() else []
    instructions = torch.backends.cpu.get_cpu_capability()
    return {"cpu": models[0] if models else "", "instructions": instructions, "torch": torch.__version__}


def test_the_run_resumes_from_its_checkpoint_and_ends_with_the_same_figures(old_run, monkeypatch):
    finished = FinishedSteps()
    callbacks = [*transformers.trainer.DEFAULT_CALLBACKS, finished]
    monkeypatch.setattr(transformers.trainer, "DEFAULT_CALLBACKS", callbacks)

    assert recipe("pretrain")(COMMANDS["pretrain"]) == 0

    # Only the steps after the checkpoint were computed
    assert finished.numbers == list(range(EXPECTED["cut_at"] + 1, 17))

    # The whole log, the steps before the checkpoint included
    log = json.loads((old_run / "run/trainer_state.json").read_text())["log_history"]
    assert len(log) == len(EXPECTED["log"])
    for row, expected in zip(log, EXPECTED["log"], strict=True):
        assert {name: row.get(name) for name in expected} == pytest.approx(expected, abs=1e-4)

    if machine() == EXPECTED["recorded_on"]:
        written = {"model.safetensors": old_run / "run", "optimizer.safetensors": old_run / "run/checkpoint-16"}
        assert {name: sha256(folder / name) for name, folder in written.items()} == EXPECTED["sha256"]


def test_the_corpus_is_complete_and_is_not_prepared_again(old_run):
    before = {path: (path.stat().st_mtime_ns, sha256(path)) for path in (old_run / "corpus").rglob("data-*")}

    assert recipe("prepare")(COMMANDS["prepare"]) == 0

    assert before == {path: (path.stat().st_mtime_ns, sha256(path)) for path in before}


def test_the_fixture_is_small_and_holds_no_pickle():
    files = [path for path in OLD_RUN.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 300_000
    assert {path.suffix for path in files} <= {".json", ".txt", ".arrow", ".safetensors"}
    assert not [path for path in files if path.suffix != ".arrow" and path.read_bytes()[:4] == b"PK\x03\x04"]
