"""Loading: one published checkpoint into the tensors of any engine at any world size, in place."""

from collections.abc import Mapping

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

from workers.checkpointing.chunks import open_checkpoint
from workers.checkpointing.shards import ShardReader, dtype_name
from workers.contract.manifest import Manifest
from workers.errors import ConfigError


def load(run_dir: str, name: str, state: Mapping[str, torch.Tensor]) -> Manifest:
    """Overwrite the tensors of `state` (plain or DTensor) with those of checkpoint `name`. Every rank calls it; no collective.

    Each rank reads and verifies only the chunks that it needs. `manifest.resume` tells where to go on.
    Raises DamagedCheckpointError (contents are not what the manifest says), ConfigError (other names, shapes or dtypes
    than the engine's, both lists in the message), StorageError (not visible from this host, read error).
    """
    with open_checkpoint(run_dir, name) as files, torch.no_grad():
        problem = mismatch(files.manifest, state)
        if problem:
            raise ConfigError(f"checkpoint {name} does not fit this model and engine: {problem}")
        reader = ShardReader(files)
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(dict(state), reader.read_metadata())
        reader.read_data(planner.create_local_plan(), planner).wait()
        return files.manifest


def mismatch(manifest: Manifest, state: Mapping[str, torch.Tensor]) -> str | None:
    """Say in what a checkpoint and a state differ: names on either side, shapes, dtypes; None where they agree."""
    parts = []
    if missing := sorted(state.keys() - manifest.tensors.keys()):
        parts.append(f"missing in the checkpoint: {_listed(missing)}")
    if unexpected := sorted(manifest.tensors.keys() - state.keys()):
        parts.append(f"unexpected in the checkpoint: {_listed(unexpected)}")
    other = [
        f"{name} is {stored.dtype}{list(stored.shape)}, not {dtype_name(state[name].dtype)}{list(state[name].shape)}"
        for name, stored in sorted(manifest.tensors.items())
        if name in state
        and (stored.shape != tuple(state[name].shape) or stored.dtype != dtype_name(state[name].dtype))
    ]
    if other:
        parts.append(f"of another kind: {_listed(other)}")
    return "; ".join(parts) or None


def _listed(names: list[str], limit: int = 20) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
