"""Takes a checkpoint apart into pieces of at most 16 MB in bf16, and joins them: for machines that return small files.

python benchmarks/checkpoint_pieces.py split runs/bert-small-8min PIECES
python benchmarks/checkpoint_pieces.py join PIECES runs/bert-small-8min
"""

import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load, load_file, save, save_file

_PIECE = 15_000_000  # bytes
_OTHERS = ("*.json", "*.txt", "*.md", "*.csv")  # configuration, tokenizer, results


def split(checkpoint: Path, pieces: Path) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    data = save({name: tensor.to(torch.bfloat16) for name, tensor in weights.items()}, {"format": "pt"})
    for number, begin in enumerate(range(0, len(data), _PIECE)):
        (pieces / f"model.safetensors.{number:03}").write_bytes(data[begin : begin + _PIECE])


def join(pieces: Path, checkpoint: Path) -> None:
    data = b"".join(piece.read_bytes() for piece in sorted(pieces.glob("model.safetensors.*")))
    weights = {name: tensor.float() for name, tensor in load(data).items()}
    save_file(weights, checkpoint / "model.safetensors", {"format": "pt"})


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 3 or arguments[0] not in ("split", "join"):
        print(__doc__, file=sys.stderr)
        return 2

    source, target = map(Path, arguments[1:])
    target.mkdir(parents=True, exist_ok=True)
    (split if arguments[0] == "split" else join)(source, target)
    for pattern in _OTHERS:
        for file in source.glob(pattern):
            shutil.copy(file, target / file.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
