"""A checkpoint as a directory transaction: write, verify, choose.

Everything is written into a temporary folder, recorded in a manifest (sizes and SHA-256) and flushed; one rename makes
it a checkpoint. So a folder named `checkpoint-N` is whole or was damaged later, and the manifest tells which. State is
safetensors and JSON: nothing here writes or reads a pickle.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bert_hf.errors import InputError
from bert_hf.training.run_fingerprint import same

MANIFEST = "checkpoint_manifest.json"
TEMPORARY = "saving-"  # prefix of a checkpoint that is being written
REPLACED = "saving-replaced-"  # prefix of one whose successor of the same step is being put in its place
_NAME = re.compile(r"checkpoint-(\d+)")


class DamagedCheckpoint(InputError):
    """A checkpoint that is not what its manifest says; the message names the file and the fault."""

    def __init__(self, fault: str):
        super().__init__(fault, remedy="name an older checkpoint, or remove this one")
        self.fault = " ".join(fault.split())

    def __reduce__(self):
        return DamagedCheckpoint, (self.fault,)


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digests(paths: list[Path]) -> list[str]:
    """SHA-256 of each, on up to four cores: the weights and both moments are files of about one size."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(sha256, paths))


def commit(temporary: Path, final: Path, facts: dict) -> None:
    """Records what `temporary` holds, flushes it, and renames it to `final`. Called by one rank, after all wrote.

    Args:
        facts: what the checkpoint belongs to (step, fingerprints, versions); stands in the manifest.

    Raises:
        OSError: the disk is full or refuses; `temporary` is gone then, and what stood before still stands.
    """
    try:
        files = sorted(path for path in temporary.rglob("*") if path.is_file() and path.name != MANIFEST)
        entries = {
            str(path.relative_to(temporary)): {"bytes": path.stat().st_size, "sha256": digest}
            for path, digest in zip(files, _digests(files), strict=True)
        }
        manifest = {**facts, "files": entries}
        write_durably(temporary / MANIFEST, json.dumps({**manifest, "sha256": _digest(manifest)}, indent=2) + "\n")
        for path in files:
            _flush(path)
        for folder in sorted({path.parent for path in files} | {temporary}):
            _flush(folder)
    except OSError:
        discard(temporary)
        raise
    _put_in_place(temporary, final)


def _put_in_place(temporary: Path, final: Path) -> None:
    """One rename, or two where there is a checkpoint of that step: at every moment one of both is whole."""
    replaced = final.with_name(REPLACED + final.name)
    if final.exists():
        discard(replaced)
        os.rename(final, replaced)
    os.rename(temporary, final)
    _flush(final.parent)
    discard(replaced)


def discard(folder: Path) -> None:
    """Removes a folder that is not, or no longer, a checkpoint; what cannot be removed stays."""
    if folder.is_symlink() or folder.is_file():
        with contextlib.suppress(OSError):
            folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def write_durably(path: Path, text: str) -> None:
    """Writes a small file that is either the old one or the new one, whatever happens meanwhile."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    _flush(path.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(manifest: dict) -> str:
    """SHA-256 of a manifest without its own digest, whatever its spaces and the order of its keys."""
    told = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _regular(path: Path) -> bool:
    """True for a file proper: what is a FIFO or a device must not be opened, and a link may lead anywhere."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def verify(folder: Path, **belongs: Any) -> dict:
    """The manifest of a checkpoint, after every file was compared with it.

    Args:
        belongs: facts that its manifest must hold (`identity=…`).

    Raises:
        DamagedCheckpoint: no manifest or a changed one, a file missing, shorter, longer, with another content or not
            in the manifest, another step than the folder's name, other facts.
    """
    try:
        if not _regular(folder / MANIFEST):
            raise FileNotFoundError("missing")
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        entries = {str(name): (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
        whole = manifest["sha256"] == _digest(manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCheckpoint(f"{folder.name}/{MANIFEST}: {error}") from None
    if not whole:
        raise DamagedCheckpoint(f"{folder.name}/{MANIFEST}: does not match its own checksum")
    named = _NAME.fullmatch(folder.name)
    if named and manifest.get("step") != int(named[1]):
        raise DamagedCheckpoint(f"{folder.name}: holds step {manifest.get('step')}")
    for fact, value in belongs.items():
        if not same(manifest.get(fact), value):
            raise DamagedCheckpoint(f"{folder.name}: belongs to another run ({fact} differs)")
    _compare(folder, entries)
    return manifest


def _compare(folder: Path, entries: dict[str, tuple[int, str]]) -> None:
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name != MANIFEST and name not in entries and (path.is_symlink() or not path.is_dir()) and name[0] != ".":
            raise DamagedCheckpoint(f"{folder.name}/{name}: is not of this checkpoint")
    for name, (size, _) in entries.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()) or not _regular(path):
            raise DamagedCheckpoint(f"{folder.name}/{name}: missing")
        if path.stat().st_size != size:
            raise DamagedCheckpoint(f"{folder.name}/{name}: {path.stat().st_size} bytes instead of {size}")
    try:
        digests = _digests([folder / name for name in entries])
    except OSError as error:
        raise DamagedCheckpoint(f"{error.filename or folder.name}: {error.strerror}") from None
    for (name, (_, digest)), found in zip(entries.items(), digests, strict=True):
        if found != digest:
            raise DamagedCheckpoint(f"{folder.name}/{name}: content does not match its checksum")


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run folder, newest (highest step) first, verified or not."""
    found = [(int(match[1]), path) for path in run.glob("checkpoint-*") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True)]


def newest_verified(
    run: Path,
    say: Callable[[str], None] = print,
    also: Callable[[Path], object] = lambda folder: None,
    **belongs: Any,
) -> Path | None:
    """The newest checkpoint that verifies. A damaged one is named and passed over. What a cut-off save left goes.

    A save that was cut off between its manifest and its rename is whole, and put in its place.

    Args:
        also: one more look at a folder that verifies; raises `DamagedCheckpoint`.
        belongs: facts that its manifest must hold, as `verify` takes them.
    """
    for leftover in sorted(run.glob(TEMPORARY + "*")):  # the successor before what it replaces
        final = run / leftover.name.removeprefix(REPLACED).removeprefix(TEMPORARY)
        named = _NAME.fullmatch(final.name)
        with contextlib.suppress(DamagedCheckpoint, OSError):
            if named and not final.exists() and verify(leftover, **belongs).get("step") == int(named[1]):
                _put_in_place(leftover, final)
        discard(leftover)
    for folder in checkpoints(run):
        try:
            verify(folder, **belongs)
            also(folder)
            return folder
        except DamagedCheckpoint as damage:
            say(f"passing over a damaged checkpoint: {damage.fault}")
    return None


def rotate(run: Path, keep: int | None, good: set[str], spared: str | None = None) -> None:
    """Deletes what is older than the `keep` newest good checkpoints (None or 0 keeps all), but never `spared`.

    Args:
        good: names of the checkpoints that are known to be whole; no other one counts among the kept.
    """
    if not keep:
        return
    kept = [folder for folder in checkpoints(run) if folder.name in good][:keep]
    for folder in checkpoints(run) if len(kept) == keep else []:
        older = int(_NAME.fullmatch(folder.name)[1]) < int(_NAME.fullmatch(kept[-1].name)[1])
        if older and (spared is None or folder.name != Path(spared).name):
            # By a rename first: a deletion that is cut off leaves no half checkpoint that could be taken for damage.
            going = folder.with_name(TEMPORARY + "deleted-" + folder.name)
            discard(going)
            with contextlib.suppress(OSError):
                os.rename(folder, going)
                discard(going)
