"""Bad input: the catalogue of tests/bad_inputs.py as cases."""

import json
import os
import traceback

from faults.cases import Bench, Case, Outcome


def inputs(bench: Bench, points: int | None) -> list[Case]:
    """A case for each row of the catalogue, which runs once, in a forked process."""
    from test_bad_inputs import run_catalogue

    place = bench.work / "inputs.json"
    pid = os.fork()
    if not pid:
        try:
            rows = [(str(name), bool(ok), str(got)) for name, ok, got in run_catalogue()]
            place.write_text(json.dumps(rows))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    if not place.exists():
        raise RuntimeError("the catalogue of bad inputs did not finish")
    return [Case("inputs", name, _compared(ok, got)) for name, ok, got in json.loads(place.read_text())[:points]]


def _compared(ok: bool, got: str):
    return lambda bench, folder, rng: Outcome(1, None if ok else f"unexpected output: {got[:300]}")
