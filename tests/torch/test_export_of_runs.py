"""What comes out of a sharded run is the user's module again: every tensor, its shape, its dtype, its buffers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from small_tasks import HouseNet, make_config
from test_loop import samples, train_round

from workers.checkpointing import catalog
from workers.export import export

if TYPE_CHECKING:
    from gloo_ranks import Launcher

pytestmark = pytest.mark.torch

HOUSE = {"model__args__net": "house", "checkpoint__every_steps": 2, "checkpoint__mode": "sync"}


@pytest.mark.parametrize("engine", [{"engine__kind": "ddp"}, {"engine__zero_stage": 3}])
def test_an_export_loads_strictly_into_the_plain_module(
    ranks: "Launcher", tmp_path: Path, engine: dict[str, Any]
) -> None:
    """B013, B015, B046: no shape is a shard's, buffers and frozen weights are there."""
    changes = HOUSE | engine
    run_dir = str(tmp_path / "run")
    ((result, _), *_) = ranks(train_round, 2, run_dir, changes)
    where = export(run_dir, result.checkpoint, make_config(**changes), tmp_path / "export").export_path
    exported = load_file(where / "model.safetensors")
    with safe_open(str(where / "model.safetensors"), "pt") as file:
        aliases = {k: v for k, v in (file.metadata() or {}).items() if k != "format"}

    torch.manual_seed(0)
    plain = HouseNet()
    before = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    whole = exported | {alias: exported[stored] for alias, stored in aliases.items() if stored in exported}
    assert {n: (t.shape, t.dtype) for n, t in whole.items()} == {
        n: (t.shape, t.dtype) for n, t in before.items()
    }
    plain.load_state_dict(whole, strict=True)
    assert int(plain.counter) == 7
    assert int(plain.statistics.num_batches_tracked) > 0
    for name in (n for n in before if n.startswith("blocks.1.")):
        assert torch.equal(whole[name], before[name]), name  # frozen
    assert not torch.equal(whole["blocks.0.up.weight"], before["blocks.0.up.weight"])


def test_each_rank_of_four_writes_about_a_quarter(ranks: "Launcher", tmp_path: Path) -> None:
    """B112."""
    changes = {
        "model": {"kind": "llama", "size": "nano"},
        "data": {"kind": "text", "path": str(Path(__file__).parent), "seq_len": 32},
        "checkpoint__mode": "sync",
        "train__steps": 1,
    }
    ((result, _), *_) = ranks(train_round, 4, str(tmp_path), changes)
    files = catalog.read_manifest(str(tmp_path), result.checkpoint).files
    sizes = [size for name, size in files.items() if name.startswith("rank-")]
    assert len(sizes) == 4
    assert max(sizes) <= 1.1 * sum(sizes) / 4


def test_growing_a_run_with_dropout_is_the_same_every_time(ranks: "Launcher", tmp_path: Path) -> None:
    """B003: ranks that were not there at the save have a stream of their own, derived from seed and position."""
    changes = {"model__args__net": "dropout", "checkpoint__every_steps": 2, "checkpoint__keep": 9}
    run_dir = str(tmp_path)
    ranks(train_round, 2, run_dir, changes)
    earlier = next(str(m.checkpoint) for m in catalog.published(run_dir) if m.resume.step == 2)
    traces = []
    for round_ in (1, 2):
        ((_, told), *_) = ranks(train_round, 4, run_dir, changes, round_, earlier)
        traces.append([(s.step, s.loss) for s in samples(told)])
    assert traces[0] == traces[1]
    assert [step for step, _ in traces[0]] == [3, 4, 5, 6]
