"""Read the export of `job.yaml` and play: torch, safetensors and the package itself, nothing of shardyard."""

import argparse
from pathlib import Path

import torch
from life.boards import Boards, next_board
from life.task import LifeNet
from safetensors.torch import load_file


def load(directory: Path) -> LifeNet:
    """Return the network of an export; its size is read off the weights."""
    weights = load_file(directory / "model.safetensors")
    num_layers = sum(name.endswith("widen.weight") for name in weights)
    net = LifeNet(width=len(weights["look.weight"]), num_layers=num_layers)
    net.load_state_dict(weights)
    return net.eval()


@torch.no_grad()
def share_right(net: LifeNet, *, steps: int) -> float:
    """Return the share of cells that are right when the network plays `steps` steps on from boards it never saw."""
    played = truth = Boards(count=64, size=24, seed=2).batch(range(64))["now"]
    for _ in range(steps):
        played, truth = (net(played) > 0).float(), next_board(truth)
    return (played == truth).float().mean().item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("export", type=Path)
    net = load(parser.parse_args().export)
    for steps in (1, 10, 100):
        print(f"{steps:3} steps on: {share_right(net, steps=steps):.2%} of the cells are right")
