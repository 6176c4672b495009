"""Damaged checkpoints: each file damaged in each way is detected before a step."""

import contextlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from bert_hf.training.checkpoints import checkpoint_files
from faults.cases import Bench, Case, Outcome
from faults.kills import LATE
from faults.runs import complete
from faults.subject import EVERY, STEPS, last_line

LAST, BEFORE = STEPS, STEPS - EVERY  # the two newest checkpoints of the uninterrupted run
NEWEST, OLDER = LATE - EVERY, LATE - 2 * EVERY  # those of a run that was cut off


def cut_in_half(file: Path, other: Path, rng: random.Random) -> None:
    os.truncate(file, file.stat().st_size // 2)


def flip_a_bit(file: Path, other: Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def swap_for_another_step(file: Path, other: Path, rng: random.Random) -> None:
    shutil.copyfile(other, file)


def delete(file: Path, other: Path, rng: random.Random) -> None:
    file.unlink()


def make_a_folder(file: Path, other: Path, rng: random.Random) -> None:
    file.unlink()
    file.mkdir()


def make_a_link(file: Path, other: Path, rng: random.Random) -> None:
    file.unlink()
    file.symlink_to(other)


def append_junk(file: Path, other: Path, rng: random.Random) -> None:
    with open(file, "ab") as end:
        end.write(rng.randbytes(16))


FILE_DAMAGE = (
    cut_in_half, flip_a_bit, swap_for_another_step, delete, make_a_folder, make_a_link, append_junk,
)  # fmt: skip


def add_a_file(folder: Path, other: Path, rng: random.Random) -> None:
    (folder / "junk.safetensors").write_bytes(rng.randbytes(100))


def take_a_file_off_the_list(folder: Path, other: Path, rng: random.Random) -> None:
    _edit(folder, lambda manifest: manifest["files"].pop(rng.choice(sorted(manifest["files"]))))


def take_file_and_entry_away(folder: Path, other: Path, rng: random.Random) -> None:
    name = rng.choice(["optimizer.safetensors", "scheduler.safetensors", "rank_0.safetensors"])
    _edit(folder, lambda manifest: manifest["files"].pop(name))
    (folder / name).unlink()


def change_the_step(folder: Path, other: Path, rng: random.Random) -> None:
    _edit(folder, lambda manifest: manifest.update(step=manifest["step"] + rng.randint(1, 9)))


def write_other_json(folder: Path, other: Path, rng: random.Random) -> None:
    text = rng.choice(["[]", "null", "{}", '{"files": []}', '{"files": {}}', '{"files": {"a": 1}}', "NaN", '"x"'])
    (folder / checkpoint_files.MANIFEST).write_text(text)


def rename_the_folder(folder: Path, other: Path, rng: random.Random) -> None:
    folder.rename(folder.with_name(f"checkpoint-{LAST + rng.randint(1, 99)}"))


FOLDER_DAMAGE = (
    add_a_file, take_a_file_off_the_list, take_file_and_entry_away, change_the_step, write_other_json,
    rename_the_folder,
)  # fmt: skip


def _edit(folder: Path, change: Callable) -> None:
    path = folder / checkpoint_files.MANIFEST
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest, indent=2) + "\n")


def damages(bench: Bench) -> list[tuple[str, Callable[[Path, Path, random.Random], None]]]:
    """(name, function) of each way to damage the whole checkpoint, and of each way for each of its files."""
    files = sorted(path.name for path in (bench.work / f"oracle-forked/run/checkpoint-{LAST}").iterdir())
    found = [(way.__name__, way) for way in FOLDER_DAMAGE]
    for name in files:
        for way in FILE_DAMAGE:
            found.append((f"{way.__name__}:{name}", of_file(way, name)))
    return found


def of_file(way: Callable, name: str) -> Callable:
    return lambda folder, other, rng: way(folder / name, other / name, rng)


def detected(bench: Bench, points: int) -> list[Case]:
    """In this process: `newest_verified` names the damaged checkpoint and returns the one before it."""
    bench.subject.oracle()
    ways = damages(bench)
    cases = []
    for number in range(points):
        name, damage = ways[number % len(ways)]
        cases.append(Case("corruptions", f"{number}-{name}", verify_damaged(damage)))
    return cases


def _contents(folder: Path) -> dict:
    """Content of a folder: bytes of each file, mode of other entries, the manifest parsed."""
    found = {}
    for path in folder.iterdir() if folder.is_dir() and not folder.is_symlink() else ():
        regular = path.is_file() and not path.is_symlink()
        found[path.name] = path.read_bytes() if regular else path.lstat().st_mode
        if regular and path.name == checkpoint_files.MANIFEST:
            with contextlib.suppress(ValueError):
                found[path.name] = json.loads(path.read_bytes())
    return found


def verify_damaged(damage: Callable):
    def run_case(bench: Bench, folder: Path, rng: random.Random) -> Outcome:
        run = folder / "run"
        whole, damaged = run / f"checkpoint-{BEFORE}", run / f"checkpoint-{LAST}"
        for step in (LAST, BEFORE):
            shutil.copytree(bench.work / f"oracle-forked/run/checkpoint-{step}", run / f"checkpoint-{step}")

        before = _contents(damaged)
        damage(damaged, whole, rng)
        if _contents(damaged) == before:
            return Outcome(0)  # another step's file may be equal, and the manifest's last line break has no meaning

        messages: list[str] = []
        with mock.patch.object(checkpoint_files.logger, "warning", messages.append):
            chosen = checkpoint_files.newest_verified(run)
        if chosen != whole:
            return Outcome(1, f"{chosen.name if chosen else 'nothing'} was chosen; messages: {messages}")
        silent = damaged.is_dir() and not messages
        return Outcome(1, "skipped without a message" if silent else None)

    return run_case


def fallbacks(bench: Bench, points: int) -> list[Case]:
    """End to end: the newest checkpoint of an interrupted run is damaged; it resumes from the one before."""
    bench.subject.snapshot(LATE)
    harmless = ("swap_for_another_step:config", "swap_for_another_step:tokenizer")
    ways = [way for way in damages(bench) if not way[0].startswith(harmless)]
    chosen = enumerate(bench.rng("fallbacks").sample(ways, points))
    return [Case("fallbacks", f"{number}-{name}", _resume_from_older(damage)) for number, (name, damage) in chosen]


def _resume_from_older(damage: Callable):
    def run_case(bench: Bench, folder: Path, rng: random.Random) -> str | None:
        subject = bench.subject
        run = subject.copied(folder, subject.snapshot(LATE)) / "run"
        damage(run / f"checkpoint-{NEWEST}", run / f"checkpoint-{OLDER}", rng)
        code, output = complete(subject.plan(folder, "log-restart"))
        fault = f"it exits with {code}: {last_line(output)}" if code else None
        fault = fault or subject.differs(run, known=f"checkpoint-{NEWEST}")
        if fault is None and f"resuming from {run}/checkpoint-{OLDER}" not in output:
            fault = "it did not resume from the checkpoint before"
        return fault

    return run_case
