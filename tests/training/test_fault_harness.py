"""A sample of fault injection: each fault has its effect, differences are detected, and runs recover.

All cases: `make faults`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from faults.runs import build_calls

ROOT = Path(__file__).parents[2]
# Points of each kind: of the short sample in `make test`, of the long one in `make test-slow`.
SHORT = {"enumerated": 1, "corruptions": 60, "signals": 1}
LONG = {"enumerated": 2, "kills": 2, "fallbacks": 1, "signals": 2, "disk": 2, "layouts": 1}


def run_sample(sizes: dict[str, int], work: Path) -> dict:
    """The JSON line that run_faults.py prints."""
    flags = [word for kind, points in sizes.items() for word in (f"--{kind}", str(points))]
    command = [sys.executable, str(ROOT / "tests/faults/run_faults.py"), *flags, "--only", ",".join(sizes)]
    done = subprocess.run([*command, "--work", str(work)], capture_output=True, text=True, timeout=300)
    assert done.stdout.rstrip(), done.stderr
    last = done.stdout.rstrip().rsplit("\n", 1)[1]
    return json.loads(last) if last.startswith("{") else pytest.fail(done.stdout + done.stderr)


def check_recovered(result: dict, sizes: dict[str, int]) -> None:
    assert result["faults"] == []
    for kind in result["kinds"]:
        least = sizes[kind] * 2 // 3  # a kill may come too late, and some damage changes nothing
        assert result["kinds"][kind]["points"] >= least, kind
    assert result["kinds"].keys() | {"enumerated", "kills", "fallbacks", "signals", "disk"} >= sizes.keys()


def test_runs_recover(tmp_path):
    check_recovered(run_sample(SHORT, tmp_path), SHORT)


@pytest.mark.slow
def test_more_runs_recover(tmp_path):
    check_recovered(run_sample(LONG, tmp_path), LONG)


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    library = build_calls(tmp_path_factory.mktemp("calls"))
    return library or pytest.skip("no C compiler")


def run_with_fault(calls: Path, folder: Path, call: str) -> tuple[int, str]:
    """Writes a file of 1,000 bytes and renames it, with a fault armed; returns exit code and output."""
    program = f"""
from pathlib import Path
from faults.runs import Call, NEEDS_SPACE
folder = Path({str(folder)!r})
Call(folder, {call}).arm()
try:
    descriptor = __import__("os").open(folder / "new", 0o101)
    print(__import__("os").write(descriptor, bytes(1000)))
    __import__("os").rename(folder / "new", folder / "file")
except OSError as error:
    print(error.errno)
"""
    environment = {**os.environ, "LD_PRELOAD": str(calls), "PYTHONPATH": str(ROOT / "tests")}
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
        ("3, 'kill before', kinds=NEEDS_SPACE", 0, "1000", {"file": 1000}),
    ],
)
def test_a_fault_has_its_effect(calls, tmp_path, call, code, printed, left):
    assert run_with_fault(calls, tmp_path, call) == (code, printed)
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == left
