"""The same 64 sequences in four layouts: whose gradient is the same?

python benchmarks/loss_scaling.py

Ours and the stock model in the stock Trainer, dropout 0, fp32: one batch of 64, four accumulated batches of 16, two
ranks of 32, and ZeRO 2 on two ranks. Prints the norm of the gradient as a multiple of the one of 1 × 64, and the
relative distance to it; then a JSON line. CPU only; about two minutes.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[1]
LAYOUTS = {
    "1 × 64": (None, "64", "1"),
    "4 × 16 accumulated": (None, "16", "4"),
    "2 ranks × 32": ("cpu_ddp", "32", "1"),
    "2 ranks × 32, ZeRO 2": ("cpu_zero2", "32", "1"),
}


def run(folder: Path, machine: str | None, micro: str, accumulation: str, family: str) -> dict[str, torch.Tensor]:
    worker = ["tests/layout_worker.py", str(folder), micro, accumulation, family]
    launcher = ["-m", "accelerate.commands.launch", "--config_file", f"configs/accelerate/{machine}.yaml"]
    command = [sys.executable, *(launcher if machine else []), *worker]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return load_file(folder / "result.safetensors")


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for family in ("ours", "stock"):
            whole = None
            for number, (layout, (machine, micro, accumulation)) in enumerate(LAYOUTS.items()):
                result = run(Path(place) / f"{family}-{number}", machine, micro, accumulation, family)
                gradient = torch.cat([v.flatten() for k, v in result.items() if k.startswith("gradient/")]).double()
                whole = gradient if whole is None else whole
                multiple = (gradient.norm() / whole.norm()).item()
                distance = ((gradient - whole).norm() / whole.norm()).item()
                loss = result["losses/gradient"][0].item()
                rows.append({"family": family, "layout": layout, "loss": loss, "norm": multiple, "distance": distance})
                print(f"{family:6} {layout:22} loss {loss:8.4f}  gradient × {multiple:6.3f}  distance {distance:.1e}")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
