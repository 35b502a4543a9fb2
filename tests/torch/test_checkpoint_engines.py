"""One checkpoint, every engine: what one wrote, the others read bit for bit, and write again equal."""

import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from sharded_states import gathered, make_saver, overwrite, resume_at, same

from benchmarks.checkpoint_matrix.canonical import digest, layout_of, read_whole
from benchmarks.checkpoint_matrix.rank import make_reference
from benchmarks.equivalence.matrix import DDP
from workers.checkpointing import catalog
from workers.checkpointing.catalog import read_manifest
from workers.checkpointing.load import load
from workers.contract.config import TrainingConfig
from workers.contract.manifest import Manifest
from workers.engines import Engine, build_engine
from workers.models import load_task
from workers.world import World

pytestmark = pytest.mark.torch

LAYOUTS = [
    ("fsdp", 3, 3),
    ("deepspeed", 2, 3),
    ("deepspeed", 3, 2),
    ("ddp", 0, 2),
    ("fsdp", 2, 2),
    ("deepspeed", 1, 2),
    ("deepspeed", 3, 3),
    ("fsdp", 3, 1),
]


def _engine(world: World, kind: str, stage: int) -> Engine:
    config = TrainingConfig.model_validate(
        {
            "model": {"kind": "llama", "size": "nano", "tie_embeddings": True},
            "data": {"kind": "text", "path": "python-stdlib"},
            "engine": {"kind": kind, "zero_stage": stage},
            "train": {"precision": {"params": "bf16" if stage else "fp32"}},
        }
    )
    return build_engine(config, load_task(config), world)


def _values(engine: Engine) -> dict[str, torch.Tensor]:
    """Whole tensors that depend on the name alone."""
    values = {}
    for name, tensor in engine.state().items():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        values[name] = torch.rand(tensor.shape, generator=generator).to(tensor.dtype)
    return values


def _save_first(world: World, run_dir: str, kind: str, stage: int) -> str:
    engine = _engine(world, kind, stage)
    overwrite(dict(engine.state()), _values(engine))
    engine.after_load()
    return make_saver(world, run_dir).save_final(engine.state(), engine.aliases(), resume_at(1))


def _load_and_save(world: World, run_dir: str, kind: str, stage: int, name: str, round_: int) -> bool:
    engine = _engine(world, kind, stage)
    resume = load(run_dir, name, engine.state()).resume
    engine.after_load()
    saver = make_saver(world, run_dir, round_=round_, keep=9)
    saver.save(engine.state(), engine.aliases(), resume)
    saver.wait()
    return same(gathered(dict(engine.state())), _values(engine))


@pytest.mark.parametrize("layout", LAYOUTS[:4])
def test_what_one_engine_wrote_every_other_continues_bit_for_bit(
    ranks: Any, tmp_path: Path, layout: tuple[str, int, int]
) -> None:
    """B011."""
    run_dir = str(tmp_path)
    kind, stage, world_size = layout
    names = ranks(_save_first, world_size, run_dir, kind, stage)
    for round_, (other_kind, other_stage, other_size) in enumerate(LAYOUTS, start=1):
        loads = ranks(_load_and_save, other_size, run_dir, other_kind, other_stage, names[0], round_)
        assert loads == [True] * other_size
    first, *others = catalog.published(run_dir)
    assert len(others) == len(LAYOUTS)
    for other in others:
        assert other.aliases == first.aliases == {"model.lm_head.weight": "model.model.embed_tokens.weight"}
        assert other.resume == first.resume
        assert {n: (t.dtype, t.shape) for n, t in other.tensors.items()} == {
            n: (t.dtype, t.shape) for n, t in first.tensors.items()
        }


def test_content_and_layout_of_a_checkpoint_are_told_apart(ranks: Any, tmp_path: Path) -> None:
    [(name, losses)] = ranks(make_reference, 1, DDP, str(tmp_path), 2)
    found = read_whole(str(tmp_path), name)
    assert len(losses) == 18
    changed = {key: value.clone() for key, value in found.items()}
    assert digest(changed) == digest(found)
    next(value for value in changed.values() if value.numel())[..., 0] += 1
    assert digest(changed) != digest(found)
    manifest = read_manifest(str(tmp_path), name)
    assert isinstance(manifest, Manifest)
    moved = manifest.model_copy(
        update={
            "tensors": {
                key: stored.model_copy(
                    update={
                        "chunks": tuple(c.model_copy(update={"start": c.start + 8}) for c in stored.chunks)
                    }
                )
                for key, stored in manifest.tensors.items()
            }
        }
    )
    assert layout_of(moved) != layout_of(manifest)
