"""Runs single cells in this process: skips finished ones, resumes an interrupted one, removes weights."""

import contextlib
import gc
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from bert_hf.analysis.study.plan import Cell, Plan
from bert_hf.analysis.study.recipe_options import files_of_options, recipe_options
from bert_hf.config.files import read_json_object, write_durably
from bert_hf.data.corpus.checksums import file_checksum, text_checksum
from bert_hf.errors import InputError, error_context
from bert_hf.training.output_folder import RUN_RECORD
from bert_hf.training.run_fingerprint import retired_keys

CELL = "cell.json"  # the command of a cell, and digests of the files that it reads
RUN = "run"  # the recipe's output folder within a cell's
LOG = "log.txt"  # printed by the recipe

# Removed from a finished cell, unless its model is kept
_OF_THE_MODEL = ("*.safetensors", "*.safetensors.index.json", "tokenizer*.json", "vocab.txt", "checkpoint-*")

Main = Callable[[list[str]], int]  # a recipe's `main`


class CellFailed(Exception):
    """A cell's recipe ended with an exit code, after it printed why."""

    def __init__(self, code: int):
        super().__init__(code)
        self.code = code


class CellRunner:
    """Runs cells of a plan by a recipe's `main`.

    A cell's folder holds its command, what the recipe printed, and the recipe's output folder.
    """

    def __init__(self, plan: Plan, main: Main):
        self.plan = plan
        self.main = main
        self._digests: dict[Path, str] = {}

    def folder(self, cell: Cell) -> Path:
        return self.plan.root / "cells" / cell.path

    def run_folder(self, cell: Cell) -> Path:
        """The recipe's output folder."""
        return self.folder(cell) / RUN

    def check(self, cell: Cell) -> None:
        """Runs the recipe's own check (`--check`), which writes nothing.

        Raises:
            CellFailed: with the recipe's exit code.
        """
        argv = [*self.plan.argv(cell), "--output_dir", str(self.run_folder(cell)), "--check", "true"]
        with error_context(f"cell {cell}"):
            code = self.main(argv)
        if code != 0:
            raise CellFailed(code)

    def run(self, cell: Cell) -> bool:
        """Runs a cell unless it is finished.

        Returns:
            True if the recipe was called.

        Raises:
            CellFailed: with the recipe's exit code.
            InputError: the cell was run before with other data, another checkpoint, or other contents of a file that
                the options name, as of --config.
        """
        if cell.size is not None:
            self.plan.subsets[cell.fold.number].write(self.plan.root, cell.size, cell.seed if cell.tuning else None)

        folder = self.folder(cell)
        argv = self.plan.argv(cell)
        record = {"words": argv, "inputs": self._inputs(cell), "files": self._named_files(cell)}
        before = read_json_object(folder / CELL)
        _refuse_other_inputs(folder, before, record)
        _refuse_former_order(folder / RUN)
        if before == record and _is_finished(folder / RUN):
            self._remove_model(folder / RUN)
            return False

        # Where the command has changed, the recipe itself tells whether it is the same run
        folder.mkdir(parents=True, exist_ok=True)
        if before is None:
            _write(folder / CELL, record)
        with open(folder / LOG, "a", encoding="utf-8", buffering=1) as log:
            code = self._call([*argv, "--output_dir", str(folder / RUN)], f"cell {cell}", log)
        if code != 0:
            raise CellFailed(code)

        _write(folder / CELL, record)
        self._remove_model(folder / RUN)
        return True

    def _call(self, argv: list[str], name: str, log) -> int:
        try:
            with contextlib.redirect_stdout(log), error_context(name):
                return self.main(argv)
        except Exception as error:
            error.add_note(f"in {name}")
            raise
        finally:
            gc.collect()  # a Trainer and its callbacks refer to each other

    def _remove_model(self, run: Path) -> None:
        if self.plan.study_args.keep_models:
            return
        for path in [path for pattern in _OF_THE_MODEL for path in run.glob(pattern)]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    # ---- files that a cell reads

    def _inputs(self, cell: Cell) -> dict[str, str]:
        """Digests of the files that a cell reads. (A run compares its data itself, but not its checkpoint.)"""
        digests = {part: self._digest(path) for part, path in self.plan.files(cell).items()}
        checkpoint = Path(cell.model.path_of(cell.fold.number))
        if checkpoint.is_dir():
            weights = [] if cell.model.from_scratch else sorted(checkpoint.glob("*.safetensors"))
            shape = [checkpoint / name for name in ("config.json", "tokenizer.json", "vocab.txt")]
            files = [*(path for path in shape if path.is_file()), *weights]
            digests["model"] = text_checksum("".join(map(self._digest, files)))
        return digests

    def _named_files(self, cell: Cell) -> dict[str, str]:
        """Digests of the files that the options of a cell name: that of --config, and data without --folds_dir."""
        options = self.plan.recipe_options | recipe_options(cell.model.argv)
        return {str(path): self._digest(path) for path in files_of_options(options)}

    def _digest(self, path: Path) -> str:
        if path not in self._digests:
            self._digests[path] = file_checksum(path)
        return self._digests[path]


def _refuse_other_inputs(folder: Path, before: dict | None, record: dict) -> None:
    """Refuses a cell whose inputs changed. A file that its options did not name before is for the recipe to judge."""
    if before is None:
        return
    inputs, files = before.get("inputs", {}), before.get("files", {})
    differing = [name for name, digest in record["inputs"].items() if inputs.get(name) != digest]
    differing += [name for name, digest in record["files"].items() if files.get(name, digest) != digest]
    if not differing:
        return
    raise InputError(
        f"the cell was run with other files ({', '.join(differing)})",
        where=folder,
        remedy="give another --output_dir, or remove this folder",
    )


def _refuse_former_order(run: Path) -> None:
    """Refuses a cell that an earlier version trained in another order of batches: one table would compare both."""
    if retired_keys((read_json_object(run / RUN_RECORD) or {}).get("identity", {})):
        raise InputError(
            "the cell was trained by version 0.2.0 or before, in another order of batches",
            where=run,
            remedy="give another --output_dir, or remove the cells",
        )


def _is_finished(run: Path) -> bool:
    record = read_json_object(run / RUN_RECORD) or {}
    return record.get("finished") is True and (run / "all_results.json").is_file()


def _write(path: Path, record: dict) -> None:
    write_durably(path, json.dumps(record, indent=2) + "\n")
