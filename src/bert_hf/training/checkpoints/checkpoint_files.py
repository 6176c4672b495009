"""Writes checkpoints atomically, verifies them by their manifests, finds the newest good one and deletes old ones.

Everything is written into a temporary folder, recorded in a manifest (sizes and SHA-256) and flushed; one rename makes
it a checkpoint. So a folder named `checkpoint-N` is complete or was damaged later, and the manifest tells which.
"""

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bert_hf.config.files import file_checksum, flush_to_disk, json_checksum, read_json_object, write_durably
from bert_hf.console import logger
from bert_hf.errors import InputError, RunInterrupted
from bert_hf.training.distributed import Ranks

MANIFEST = "checkpoint_manifest.json"
TEMPORARY = "saving-"  # prefix of a checkpoint that is being written
VISIBLE_WITHIN = 62.0  # seconds to wait for the files of other hosts: NFS caches a folder for 60


class DamagedCheckpoint(InputError):
    """Raised for a checkpoint that has no valid manifest, differs from it, or cannot be read; names file and fault."""

    def __init__(self, fault: str):
        super().__init__(fault, remedy="give an older checkpoint, or remove this one")


def _file_digests(paths: list[Path]) -> list[str]:
    """Return the SHA-256 of each file in hexadecimal, computed by up to four threads."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(file_checksum, paths))


def wait_for_files(folder: Path, names: Collection[str]) -> list[str]:
    """Wait up to `VISIBLE_WITHIN` for files that other hosts wrote; return the names of those still not visible."""
    end = time.monotonic() + VISIBLE_WITHIN
    while missing := [name for name in names if not os.path.isfile(folder / name)]:
        if time.monotonic() > end:
            break
        time.sleep(0.5)
        with contextlib.suppress(OSError):  # the folder may be invisible itself
            os.listdir(folder)  # asks the server for its changes
    return missing


def commit(temporary: Path, final: Path, facts: dict) -> None:
    """Make `temporary` the checkpoint `final`: write its manifest (files and `facts`), flush everything, rename it."""
    paths = sorted(path for path in temporary.rglob("*") if path.is_file() and path.name != MANIFEST)
    entries = {
        str(path.relative_to(temporary)): {"bytes": path.stat().st_size, "sha256": digest}
        for path, digest in zip(paths, _file_digests(paths), strict=True)
    }
    manifest = {**facts, "files": entries}
    write_durably(temporary / MANIFEST, json.dumps({**manifest, "sha256": _digest_of(manifest)}, indent=2) + "\n")

    # Flush every file and folder before the rename
    for path in (*paths, *sorted({path.parent for path in paths}), temporary):
        flush_to_disk(path)

    # Replace an older checkpoint of the same step: `temporary` is complete
    if final.exists():
        _delete_checkpoint(final)
    os.rename(temporary, final)
    flush_to_disk(final.parent)


def _delete_checkpoint(checkpoint: Path) -> None:
    """Delete a checkpoint, renamed first: an interrupted deletion leaves none that looks damaged."""
    deleted = checkpoint.with_name(f"{TEMPORARY}deleted-{checkpoint.name}")
    shutil.rmtree(deleted, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.rename(checkpoint, deleted)
        shutil.rmtree(deleted, ignore_errors=True)


def _digest_of(manifest: dict) -> str:
    """Return the SHA-256 of a manifest without its entry `sha256`, independent of spaces and the order of keys."""
    return json_checksum({key: value for key, value in manifest.items() if key != "sha256"})


def verify(folder: Path) -> dict:
    """Return the manifest of a checkpoint; raise `DamagedCheckpoint` unless it, all files and the step are right."""
    manifest = read_json_object(folder / MANIFEST)
    if manifest is None or manifest.get("sha256") != _digest_of(manifest):
        raise DamagedCheckpoint(f"{folder.name}/{MANIFEST}: missing or damaged")

    if step_of(folder) not in (-1, manifest.get("step")):  # -1: the folder has another name
        raise DamagedCheckpoint(f"{folder.name}: holds step {manifest.get('step')}")

    # No file may be there that the manifest lacks, but hidden ones, which a file manager or NFS may add
    entries = manifest["files"]
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and name != MANIFEST and name not in entries and name[0] != ".":
            raise DamagedCheckpoint(f"{folder.name}/{name}: is not of this checkpoint")

    for name, entry in entries.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
            raise DamagedCheckpoint(f"{folder.name}/{name}: missing")
        if path.stat().st_size != entry["bytes"]:
            raise DamagedCheckpoint(f"{folder.name}/{name}: {path.stat().st_size} bytes instead of {entry['bytes']}")

    digests = _file_digests([folder / name for name in entries])
    for (name, entry), digest in zip(entries.items(), digests, strict=True):
        if digest != entry["sha256"]:
            raise DamagedCheckpoint(f"{folder.name}/{name}: content does not match its checksum")
    return manifest


def verify_named(folder: Path) -> dict:
    """Return the manifest of a checkpoint that the user names, verified; an `InputError` for another folder."""
    if not (folder / MANIFEST).exists():
        remedy = "--model_name_or_path begins a new run with its weights"
        raise InputError(f"not a checkpoint of bert_hf (no {MANIFEST})", where=folder, remedy=remedy)
    return verify(folder)


def checkpoints(run_folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, newest (highest step) first, verified or not."""
    return sorted((path for path in run_folder.glob("checkpoint-*") if step_of(path) >= 0), key=step_of, reverse=True)


def step_of(checkpoint: str | Path | None) -> int:
    """Return the step in the name of a checkpoint's folder; -1 for any other name, or None."""
    match = re.fullmatch(r"checkpoint-(\d+)", Path(str(checkpoint)).name)
    return int(match[1]) if match else -1


def newest_verified(run_folder: Path, check: Callable[[Path], object] = verify) -> Path | None:
    """Return the newest checkpoint that passes `check`, or None; warn of damaged ones, remove interrupted saves."""
    for leftover in run_folder.glob(TEMPORARY + "*"):
        shutil.rmtree(leftover, ignore_errors=True)

    for folder in checkpoints(run_folder):
        try:
            check(folder)
            return folder
        except DamagedCheckpoint as damage:
            logger.warning(f"skipping an unusable checkpoint: {damage.what}")
    return None


def rotate(run_folder: Path, keep: int | None, verified: set[str], spared: str | None = None) -> None:
    """Delete checkpoints older than the `keep` newest `verified` ones, not `spared` (a path); 0, None: keep all."""
    folders = checkpoints(run_folder)
    kept = [folder for folder in folders if folder.name in verified][: keep or 0]
    if not keep or len(kept) < keep:
        return

    for folder in folders[folders.index(kept[-1]) + 1 :]:
        if folder.name != Path(spared or "").name:
            _delete_checkpoint(folder)


def best_beside(checkpoint: Path) -> Path | None:
    """Return the path of the best checkpoint up to this one; None if none was recorded. It may have been deleted."""
    best = (read_json_object(checkpoint / "trainer_state.json") or {}).get("best_global_step")
    return checkpoint.with_name(f"checkpoint-{best}") if best else None


class RunCheckpoints:
    """Choose, verify and write the checkpoints of a run, in its output folder."""

    def __init__(self, folder: Path, ranks: Ranks):
        self.folder = folder
        self._ranks = ranks
        self._verified: set[str] = set()  # names of the checkpoints that this process wrote or verified

    def choose(self, resume_from_checkpoint: str | Path | bool | None) -> str | None:
        """Return the checkpoint to resume from: the named one, or for True the newest verified one in the folder.

        None for None or False. Rank 0 chooses for all, and copies the best model that belongs to a named checkpoint.
        """
        if not resume_from_checkpoint:
            return None

        def choose_on_rank0() -> Path | None:
            if self._ranks.rank:
                return None
            if resume_from_checkpoint is True:
                return self._newest()
            named = Path(resume_from_checkpoint)
            verify_named(named)
            self._copy_best(named)
            return named

        chosen: Any = self._ranks.run_on_all_ranks(choose_on_rank0)[0]  # what rank 0 returned
        self._verified.add(chosen.name)
        return str(chosen)

    def _newest(self) -> Path:
        """Return the newest verified checkpoint in the folder; an `InputError` if there is none."""
        newest = newest_verified(self.folder)
        if newest is None:
            remedy = "start without --resume_from_checkpoint"
            raise InputError("has no complete checkpoint of bert_hf", where=self.folder, remedy=remedy)
        return newest

    def _copy_best(self, checkpoint: Path) -> None:
        """Copy the best checkpoint up to a named one into this run's folder, where `_load_best_model` looks for it."""
        best = best_beside(checkpoint)
        if best is not None and best.is_dir() and not (self.folder / best.name).exists():
            copy = shutil.copytree(best, self.folder / f"{TEMPORARY}{best.name}", dirs_exist_ok=True)
            copy.rename(self.folder / best.name)

    def verify_unless_known(self, checkpoint: Path) -> None:
        """Verify a checkpoint unless this process has written it or resumed from it."""
        if checkpoint.name not in self._verified:
            if self._ranks.rank:  # rank 0, which may be on another host, has just written it
                wait_for_files(checkpoint, [MANIFEST])
            verify(checkpoint)

    def write(
        self, final: Path, write_files: Callable[[Path], None], facts: dict, keep: int | None, spared: str | None
    ) -> None:
        """Write a checkpoint with `facts` in its manifest, then `rotate`. Called by all ranks; an error ends all.

        `write_files` writes this rank's files into a folder; without DeepSpeed, rank 0 writes all.
        """
        temporary = final.with_name(TEMPORARY + final.name)
        rank = self._ranks.rank

        def make_folder() -> None:
            if rank == 0:
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir(parents=True)

        def write_and_list() -> list[str]:  # the names of this rank's files, for which rank 0 waits
            temporary.mkdir(parents=True, exist_ok=True)  # rank 0's may not be visible on this host yet
            write_files(temporary)
            of_rank = temporary.rglob(f"*rank_{rank}[._]*")  # DeepSpeed's zero_pp_rank_1_mp_rank_00_…
            return [str(path.relative_to(temporary)) for path in of_rank]

        def commit_and_rotate(names: list[str]) -> None:
            if rank == 0:
                if missing := wait_for_files(temporary, names):
                    what = f"{missing[0]}: written by another rank, but not visible after {VISIBLE_WITHIN:g} s"
                    raise InputError(what, where=temporary, remedy="use an --output_dir that all hosts share")
                commit(temporary, final, facts)
                self._verified.add(final.name)
                rotate(final.parent, keep, self._verified, spared=spared)

        try:
            self._ranks.run_on_all_ranks(make_folder)
            names_by_rank = self._ranks.run_on_all_ranks(write_and_list)
            names = [name for names in names_by_rank for name in names]
            self._ranks.run_on_all_ranks(lambda: commit_and_rotate(names))
        except (Exception, RunInterrupted):
            if rank == 0:
                shutil.rmtree(temporary, ignore_errors=True)
            raise
