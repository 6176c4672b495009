"""A little of the torture harness: its faults do what they say, its judges see differences, and runs survive.

All of it: `make torture`.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torture
from faults import corruptions, subject
from faults.cases import Bench, Case
from faults.runs import build_calls, group_members

ROOT = Path(__file__).parents[2]
SIZES = {
    "enumerated": 2, "kills": 2, "corruptions": 60, "fallbacks": 1, "loads": 100, "signals": 2, "disk": 2,
    "layouts": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """What the harness prints at its end."""
    flags = [word for kind, points in SIZES.items() for word in (f"--{kind}", str(points))]
    work = tmp_path_factory.mktemp("torture")
    command = [sys.executable, str(ROOT / "benchmarks/torture.py"), *flags, "--only", ",".join(SIZES)]
    done = subprocess.run([*command, "--work", str(work)], capture_output=True, text=True, timeout=300)
    assert done.stdout.rstrip(), done.stderr
    last = done.stdout.rstrip().rsplit("\n", 1)[1]
    return json.loads(last) if last.startswith("{") else pytest.fail(done.stdout + done.stderr)


@pytest.mark.parametrize("kind", SIZES)
def test_runs_survive(result, kind):
    if kind not in result["kinds"]:
        pytest.skip("no C compiler is at hand")
    assert [fault for fault in result["faults"] if fault["kind"] == kind] == []
    assert result["kinds"][kind]["points"] >= SIZES[kind] * 2 // 3  # a kill may come too late, a damage be none


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    library = build_calls(tmp_path_factory.mktemp("calls"))
    return library or pytest.skip("no C compiler is at hand")


def behind(calls: Path, folder: Path, call: str) -> tuple[int, str]:
    """Writes a file of 1,000 bytes and renames it, with a fault armed: exit code and what was printed."""
    program = f"""
from pathlib import Path
from faults.runs import Call, NEEDS_ROOM
folder = Path({str(folder)!r})
Call(folder, {call}).arm()
try:
    descriptor = __import__("os").open(folder / "new", 0o101)
    print(__import__("os").write(descriptor, bytes(1000)))
    __import__("os").rename(folder / "new", folder / "file")
except OSError as error:
    print(error.errno)
"""
    environment = {**os.environ, "LD_PRELOAD": str(calls), "PYTHONPATH": str(ROOT / "benchmarks")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert not done.stderr
    return done.returncode, done.stdout.strip()


@pytest.mark.parametrize(
    ("call", "code", "printed", "left"),
    [
        ("0", 0, "1000", {"file": 1000}),
        ("1, 'kill before'", -9, "", {}),
        ("1, 'kill after'", -9, "", {"new": 0}),
        ("2, 'kill half'", -9, "", {"new": 500}),
        ("2, 'fail', 28", 0, "28", {"new": 0}),
        ("2, 'short'", 0, "500", {"file": 500}),
        ("3, 'fail on', 5, kinds=511", 0, "1000\n5", {"new": 1000}),
        ("1, 'raise', 15", -15, "", {}),
        ("1, 'kill before', needle='other'", 0, "1000", {"file": 1000}),
        ("3, 'kill before', kinds=NEEDS_ROOM", 0, "1000", {"file": 1000}),
    ],
)
def test_a_call_meets_its_fault(calls, tmp_path, call, code, printed, left):
    assert behind(calls, tmp_path, call) == (code, printed)
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == left


def test_calls_elsewhere_do_not_count(calls, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "runs").mkdir()
    call = "1, 'kill before'"
    program = f"""
from pathlib import Path
from faults.runs import Call
Call(Path({str(tmp_path / "run")!r}), {call}).arm()
Path({str(tmp_path / "runs/file")!r}).write_text("x")
"""
    environment = {**os.environ, "LD_PRELOAD": str(calls), "PYTHONPATH": str(ROOT / "benchmarks")}
    assert subprocess.run([sys.executable, "-c", program], env=environment).returncode == 0


def finished(run: Path) -> Path:
    """What a finished run looks like to the judge."""
    run.mkdir()
    (run / "trainer_state.json").write_text('{"global_step": 6, "log_history": [{"loss": 1.5, "eval_runtime": 3}]}')
    (run / "model.safetensors").write_bytes(b"model")
    (run / "checkpoint-6").mkdir()
    (run / "checkpoint-6/optimizer.safetensors").write_bytes(b"optimizer")
    return run


@pytest.mark.parametrize(
    ("name", "content", "wrong"),
    [
        ("model.safetensors", "m0del", "model"),
        ("checkpoint-6/optimizer.safetensors", "0ptimizer", "optimizer"),
        ("trainer_state.json", '{"global_step": 6, "log_history": [{"loss": 1.6}]}', "history"),
        ("saving-checkpoint-6", "", "names"),
        ("trainer_state.json", '{"global_step": 6, "log_history": [{"loss": 1.5, "eval_runtime": 4}]}', None),
    ],
)
def test_the_judge_sees_a_difference(tmp_path, monkeypatch, name, content, wrong):
    monkeypatch.setattr(subject, "half_checkpoint", lambda run, known: None)
    judge = subject.Subject(tmp_path / "work")
    judge.oracles["forked"] = subject.fingerprint(finished(tmp_path / "oracle"))
    run = finished(tmp_path / "run")
    assert judge.differs(run) is None
    (run / name).write_text(content)
    assert (judge.differs(run) or "").partition(" ")[0] == (wrong or "")


def test_a_half_checkpoint_is_a_fault(tmp_path):
    judge = subject.Subject(tmp_path / "work")
    run = finished(tmp_path / "run")
    judge.oracles["forked"] = subject.fingerprint(run)
    assert "half checkpoint" in judge.differs(run)  # it has no manifest


def test_what_is_damaged_and_passed_is_a_fault(tmp_path, monkeypatch):
    """With a `newest_verified` that looks at nothing every damage has to be reported."""
    oracle = tmp_path / "oracle-forked/run"
    for step in (corruptions.BEFORE, corruptions.LAST):
        (oracle / f"checkpoint-{step}").mkdir(parents=True)
        (oracle / f"checkpoint-{step}/model.safetensors").write_bytes(bytes([step]) * 100)
    bench = Bench(subject.Subject(tmp_path), 0, tmp_path)
    trusting = lambda run, say: run / f"checkpoint-{corruptions.LAST}"  # noqa: E731 - stands in for a function
    monkeypatch.setattr(corruptions.checkpointing, "newest_verified", trusting)
    bench.subject.oracles["forked"] = {}
    for way in corruptions.FILE_DAMAGE:
        case = Case("corruptions", way.__name__, corruptions._look(corruptions._of_file(way, "model.safetensors")))
        outcome, _ = bench.play(case)
        assert outcome.fault, way.__name__
        shutil.rmtree(tmp_path / "cases")


def test_a_failure_is_counted_and_can_be_played_again(capsys):
    rows = [
        {"kind": "kills", "name": "0", "points": 4, "fault": None, "notes": {"inside a save": 1}},
        {"kind": "kills", "name": "1", "points": 2, "fault": "model differ", "notes": {"inside a save": 2}},
        {"kind": "stock", "name": "0", "points": 1, "fault": "crashed", "notes": {}},
    ]
    result = torture.report(rows, {"kills": 1.0, "stock": 1.0}, seed=7)
    assert "| kill -9 at random, runs forked; inside a save: 3 | 6 | 4 | 2 | 1 |" in capsys.readouterr().out
    assert result["faults"] == [{"kind": "kills", "name": "1", "fault": "model differ"}]
    assert result["kinds"]["stock"]["failed"] == 1


def test_processes_of_a_session_are_found():
    command = [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '30'])"]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        while len(group_members(process.pid)) < 2:
            assert process.poll() is None
    finally:
        os.killpg(process.pid, 9)
        process.wait()
