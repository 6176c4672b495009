"""What a training step waits for, on a GPU that is pretended: needs the CUDA build of torch and gcc, but no GPU."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow
PRETENDED = Path(__file__).parents[1] / "pretended_gpu"


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    """Build the pretended device; a process with this environment finds it in place of the CUDA driver."""
    if torch.version.cuda is None or torch.cuda.is_available() or shutil.which("gcc") is None:
        pytest.skip("needs the CUDA build of torch, gcc, and no GPU: with one, `make gpu` shows more")
    packages = Path(torch.__file__).parents[1]
    folders = [path.parent for path in packages.glob("nvidia/**/driver_types.h")]
    folders += [path.parents[1] for path in packages.glob("triton/**/crt/host_defines.h")]
    library = tmp_path_factory.mktemp("device") / "libcuda.so.1"
    include = [f"-I{folder}" for folder in folders]
    options = ["-shared", "-fPIC", "-w", f"-Wl,-soname,{library.name}", *include]
    subprocess.run(["gcc", *options, "-o", library, PRETENDED / "device.c"], check=True)
    paths = [str(PRETENDED.parent), *sys.path]
    return os.environ | {"LD_PRELOAD": str(library), "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("accumulation", ["1", "2"])
@pytest.mark.parametrize("optim", ["adamw_torch_fused", "bert_adam", "muon"])
@pytest.mark.parametrize("dropout", ["0.0", "0.1"])
def test_a_step_waits_for_nothing(tmp_path, environment, dropout, optim, accumulation):
    command = [sys.executable, PRETENDED / "train.py", tmp_path, optim, dropout, accumulation]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    counts = json.loads(output.splitlines()[-1])
    assert counts["device"] == "cuda:0"
    assert counts["copies"] >= 8 * int(accumulation)
    assert (counts["blocking copies"], counts["reads"]) == (0, 0)
