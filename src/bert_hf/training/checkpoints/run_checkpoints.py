"""Writes, finds and verifies the checkpoints of one run, on all of its ranks."""

from collections.abc import Callable, Iterable
from pathlib import Path

from bert_hf.errors import InputError, RunInterrupted
from bert_hf.training.checkpoints import checkpoint_files
from bert_hf.training.distributed import Ranks


class RunCheckpoints:
    """The checkpoints of a run: those in its output folder, and the one that it resumed from.

    Args:
        folder: the run's output folder.
        writes: True on the rank that writes shared files.
    """

    def __init__(self, folder: Path, ranks: Ranks, writes: bool):
        self.folder = folder
        self._ranks = ranks
        self._writes = writes
        self._resume_dir = folder  # that of the checkpoint that the run resumed from
        self._verified: set[str] = set()  # names of the checkpoints that this process wrote or verified

    def choose(self, resume_from_checkpoint: str | Path | bool | None) -> str | None:
        """The checkpoint to resume from: the named one, or for True the newest verified one of the output folder.

        Raises:
            InputError: the named one is damaged or missing; or the folder holds none.
        """
        if not resume_from_checkpoint:
            return None

        if resume_from_checkpoint is True:
            newest = checkpoint_files.newest_verified(self.folder) if self._ranks.rank == 0 else None
            chosen: Path | None = self._ranks.gather(newest)[0]
            if chosen is None:
                raise InputError(
                    "holds no checkpoint", where=self.folder, remedy="start without --resume_from_checkpoint"
                )
        else:
            chosen = named = Path(resume_from_checkpoint)

            def verify() -> None:
                if self._ranks.rank == 0:
                    checkpoint_files.verify_named(named)

            self._ranks.run_on_all_ranks(verify)

        self._resume_dir = chosen.parent
        self._verified.add(chosen.name)
        return str(chosen)

    def find(self, name: str) -> Path | None:
        """A checkpoint by its name, wherever the run was moved to."""
        return next((place / name for place in (self.folder, self._resume_dir) if (place / name).is_dir()), None)

    def find_verified(self, name: str) -> Path:
        """As `find`, after every file was compared with the manifest, unless this process has done so before.

        Raises:
            DamagedCheckpoint: it is damaged, or does not exist.
        """
        found = self.find(name) or self.folder / name
        if name not in self._verified:
            checkpoint_files.verify(found)
        return found

    def write(
        self, final: Path, parts: Iterable[Callable[[str], None]], *, facts: dict, keep: int | None, spared: str | None
    ) -> None:
        """Writes a checkpoint as one transaction, and deletes old ones.

        Args:
            final: where the checkpoint will be.
            parts: each writes a part into the folder that it is given; called on every rank.
            facts: entries of the manifest.
            keep: how many checkpoints remain; None or 0 keeps all.
            spared: a checkpoint that is never deleted.
        """
        temporary = final.with_name(checkpoint_files.TEMPORARY + final.name)

        def begin() -> None:
            if self._writes:
                checkpoint_files.discard(temporary)
                temporary.mkdir(parents=True)

        def commit() -> None:
            if self._writes:
                checkpoint_files.commit(temporary, final, facts)
                self._verified.add(final.name)
                checkpoint_files.rotate(final.parent, keep, self._verified, spared=spared)

        # Ranks agree after each part, so that none waits in a collective call for a rank that failed before it
        try:
            self._ranks.run_on_all_ranks(begin)
            for write_part in parts:
                self._ranks.run_on_all_ranks(lambda write=write_part: write(str(temporary)))
            self._ranks.run_on_all_ranks(commit)
        except (Exception, RunInterrupted):
            if self._writes:
                checkpoint_files.discard(temporary)
            raise
