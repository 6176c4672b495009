"""Runs all cells of a plan: those that choose settings, then those that meet the test rows; and writes the tables."""

import contextlib
import json
import time
from collections.abc import Callable
from importlib.metadata import version

from bert_hf.analysis.study.cells import CellFailed, CellRunner, Main
from bert_hf.analysis.study.metrics import (
    Row,
    cell_metrics,
    check_metrics,
    check_reference,
    choose_settings,
    collect,
    judged_prefix,
    usual_metrics,
)
from bert_hf.analysis.study.plan import Cell, Fold, Model, Plan, Settings
from bert_hf.analysis.study.report import write_report, write_table
from bert_hf.config.files import write_durably
from bert_hf.training.output_folder import refuse_foreign_files

STUDY = "study.json"  # marks a folder as a study's; what was asked


class Study:
    """A study in its output folder.

    Args:
        main: of the recipe; takes the words of a command line and returns an exit code.
        report: prints a line.
    """

    def __init__(self, plan: Plan, main: Main, report: Callable[[str], None]):
        self.plan = plan
        self.runner = CellRunner(plan, main)
        self.report = report
        self.rows: list[Row] = []  # of the finished cells, in the order of the plan

    def check(self) -> int:
        """Lets the recipe check a cell of each model and combination of settings, and prints what it says.

        Returns:
            The exit code: 0, or that of the first check that failed.
        """
        self._refuse_foreign_folder()
        self.report(self._size())
        try:
            for cell in self.plan.cells_to_check():
                self.report(f"{cell}:")
                self.runner.check(cell)
        except CellFailed as failure:
            return failure.code
        return 0

    def run(self) -> int:
        """Runs all cells that are not finished, then writes `study.csv`, `study.md` and `learning_curve.png`.

        Returns:
            0; or the exit code of the cell that failed or was stopped, after which nothing is run. The same command
            resumes there.

        Raises:
            InputError: the output folder is not a study's, a cell was run with other files, or a metric is missing.
        """
        chosen: dict[tuple[Model, int | None, Fold], Settings] = {}
        try:
            self._begin()
            for group in self.plan.groups():
                chosen[group] = self._choose(*group)
                self._run_all(self.plan.final_cells(*group, chosen[group]))
        except CellFailed as failure:
            return failure.code

        write_table(self.plan.root, self.rows)
        for line in write_report(self.plan, self.rows, chosen):
            self.report(line)
        return 0

    def _begin(self) -> None:
        """Creates the output folder, after the recipe has accepted its options: a refused study leaves nothing."""
        root = self.plan.root
        if not (root / STUDY).is_file():
            self._refuse_foreign_folder()
            with contextlib.redirect_stdout(None):
                for cell in self.plan.cells_to_check():
                    self.runner.check(cell)
        root.mkdir(parents=True, exist_ok=True)

        study_args = {**vars(self.plan.study_args), "passed_on": self.plan.recipe_argv}
        text = json.dumps({"bert_hf": version("bert-hf"), "asked": study_args}, indent=2) + "\n"
        write_durably(root / STUDY, text)
        self.report(self._size())

    def _refuse_foreign_folder(self) -> None:
        if not (self.plan.root / STUDY).is_file():
            refuse_foreign_files(self.plan.root, overwrite=False, known_by=STUDY)

    def _size(self) -> str:
        plan = self.plan
        factors = {"models": plan.models, "sizes": plan.sizes, "folds": plan.folds, "seeds": plan.seeds}
        parts = [f"{len(values)} {name}" for name, values in factors.items()]
        if plan.tunes:
            parts.append(f"({len(plan.grid)} settings + the chosen one)")
        return f"{plan.number_of_cells()} cells: {' × '.join(parts)}"

    # ---- cells

    def _choose(self, model: Model, size: int | None, fold: Fold) -> Settings:
        """The settings of a group: the only ones, or those with the best validation metrics."""
        cells = self.plan.tuning_cells(model, size, fold)
        if not cells:
            return self.plan.grid[0]

        self._run_all(cells)
        rows = self.rows[-len(cells) :]
        metrics = self.plan.study_args.metrics or usual_metrics(rows, "eval_", self.plan.task_metric)
        return choose_settings(rows, metrics[0], self.plan.validation_rows(cells[0]))

    def _run_all(self, cells: list[Cell]) -> None:
        for cell in cells:
            begun = time.perf_counter()
            called = self.runner.run(cell)
            metrics = cell_metrics(self.runner.run_folder(cell), cell)
            self.rows.append(Row(cell, self.plan.training_rows(cell.fold, cell.size), metrics))
            self._refuse_unknown_names()
            if called:
                self._report_cell(self.rows[-1], time.perf_counter() - begun)
                write_table(self.plan.root, self.rows)

    def _refuse_unknown_names(self) -> None:
        """Refuses `--metrics` and a `--reference` that the first cell does not have, before hours are spent."""
        final = [row for row in self.rows if not row.cell.tuning]
        if len(final) != 1:
            return

        study_args, prefix = self.plan.study_args, judged_prefix(final)
        check_metrics(study_args.metrics or [], final, prefix)
        if study_args.reference is not None:
            metrics = study_args.metrics or usual_metrics(final, prefix, self.plan.task_metric)
            models = [model.name for model in self.plan.models]
            check_reference(study_args.reference, models, [collect(final, metric) for metric in metrics])

    def _report_cell(self, row: Row, seconds: float) -> None:
        prefix = "eval_" if row.cell.tuning else judged_prefix([row])
        names = self.plan.study_args.metrics or usual_metrics([row], prefix, self.plan.task_metric)
        found = [f"{prefix}{name} {row.metrics[prefix + name]:.4f}" for name in names if prefix + name in row.metrics]
        done = f"{len(self.rows)} of {self.plan.number_of_cells()}"
        self.report(f"{done}: {row.cell}: {', '.join(found)} ({seconds:.0f} s)")
