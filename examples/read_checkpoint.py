"""Read a checkpoint with torch alone: nothing of shardyard is imported (docs/checkpoint-format.md).

python examples/read_checkpoint.py RUN_DIRECTORY [STEP]
"""

import json
import sys
from pathlib import Path

import torch


def newest(run_dir: Path, step: int | None = None) -> Path:
    """The directory of the newest published checkpoint, or of the newest of one step: it has a manifest."""
    found = [path.parent for path in run_dir.glob("checkpoints/step-*/manifest.json")]
    return max((d for d in found if step in (None, age(d)[0])), key=age)


def age(directory: Path) -> list[int]:
    """step-00000300.g1.a0.r2.0badcafe -> [300, 1, 0, 2]: step, generation, attempt, round."""
    step, *writer = directory.name.removeprefix("step-").split(".")[:4]
    return [int(step), *(int(part[1:]) for part in writer)]


def read(directory: Path) -> dict[str, torch.Tensor]:
    """Every tensor by name, put together from its chunks."""
    tensors = {}
    for name, stored in json.loads((directory / "manifest.json").read_text())["tensors"].items():
        tensors[name] = whole = torch.empty(stored["shape"], dtype=getattr(torch, stored["dtype"]))
        for chunk in (chunk for chunk in stored["chunks"] if chunk["length"] > 0):
            with (directory / chunk["file"]).open("rb") as file:
                file.seek(chunk["start"])
                content = bytearray(file.read(chunk["length"]))
            box = tuple(slice(o, o + n) for o, n in zip(chunk["offsets"], chunk["sizes"], strict=True))
            whole[box] = torch.frombuffer(content, dtype=whole.dtype).view(chunk["sizes"])
    return tensors


if __name__ == "__main__":
    for name, tensor in read(newest(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else None)).items():
        print(f"{name}  {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}")
