"""Writes the folds of labelled rows as JSON lines: `fold-0/train.jsonl`, `validation.jsonl`, `test.jsonl`, and so on.

Each row has `text`, `label` and, where it is a pair, `text_pair`. `split.json` marks the folder as one of ours, and
has the options.
"""

import functools
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np

from bert_hf.config.arguments import OutputArguments
from bert_hf.config.files import check_writable, write_durably
from bert_hf.config.finetuning_arguments import SplitArguments
from bert_hf.finetuning.heads.classification import ClassificationHead
from bert_hf.finetuning.heads.head import rows_of_files
from bert_hf.finetuning.rows.labelled_texts import REGRESSION, LabelledTexts, as_number
from bert_hf.finetuning.rows.splits import folds, row_strata, split_rows
from bert_hf.training.output_folder import LOCK, claim_output_dir, release_lock, take_lock

MANIFEST = "split.json"
FOLD_FILES = (MANIFEST, "fold-*/train.jsonl", "fold-*/validation.jsonl", "fold-*/test.jsonl")


def read_rows_to_split(split_args: SplitArguments) -> LabelledTexts:
    """Return the rows that are to be split."""
    head = ClassificationHead(None, vars(split_args))
    rows = head.read(list(rows_of_files(head, split_args.train_file or [], split_args.encoding)))
    if split_args.problem_type == REGRESSION:
        rows.numbers()
    else:
        rows.check_classes(split_args.problem_type is not None)
    return rows


def read_to_split(split_args: SplitArguments, output_args: OutputArguments) -> Iterator[str]:
    """Read the rows and try the folder, as `split.py` does at its start; for `--check`."""
    yield check_writable(str(output_args.output_dir))
    yield f"rows: {len(read_rows_to_split(split_args)):,}"


def make_folds(rows: LabelledTexts, groups: np.ndarray, split_args: SplitArguments) -> list[dict[str, LabelledTexts]]:
    """Return `train`, `validation` and `test` of each fold, or of the one split; `groups` (N,): near-duplicates."""
    seed, validation = split_args.split_seed, split_args.validation_split_percentage
    regression = split_args.problem_type == REGRESSION
    if split_args.folds > 1:
        return folds(rows, groups, split_args.folds, seed, validation, regression)
    percentages = {"test": split_args.test_split_percentage, "validation": validation}
    strata_of = functools.partial(row_strata, regression=regression)
    return [split_rows(rows, groups, percentages, seed, rows.file(), strata_of)]


def write_folds(
    output_dir: str | None, made: list[dict[str, LabelledTexts]], split_args: SplitArguments, overwrite: bool = False
) -> None:
    """Write all files, with `overwrite` in place of an earlier split. Of two processes only one succeeds."""
    folder = claim_output_dir(output_dir, overwrite=False, ours=FOLD_FILES, resumable=overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    take_lock(folder)
    claim_output_dir(str(folder), overwrite, ours=FOLD_FILES)  # again: another process may have written before
    for old in folder.glob("fold-*"):
        shutil.rmtree(old)
    write_durably(folder / MANIFEST, json.dumps(asdict(split_args), indent=1, ensure_ascii=False) + "\n")

    for number, parts in enumerate(made):
        fold = folder / f"fold-{number}"
        fold.mkdir()
        for name, rows in parts.items():
            lines = [_line(rows, row, split_args.problem_type == REGRESSION) for row in range(len(rows))]
            (fold / f"{name}.jsonl").write_bytes(b"".join(lines))
    (folder / LOCK).unlink()
    release_lock()


def _line(rows: LabelledTexts, number: int, regression: bool) -> bytes:
    row: dict = {"text": rows.texts[number]}
    if rows.pairs is not None:
        row["text_pair"] = rows.pairs[number]
    label = rows.class_names()[number]
    row["label"] = as_number(label) if regression else label
    return (json.dumps(row, ensure_ascii=False) + "\n").encode()
