"""Loading: one published checkpoint into the tensors of any engine at any world size, in place."""

from collections.abc import Mapping

import torch

from workers.contract.manifest import Manifest


def load(run_dir: str, name: str, state: Mapping[str, torch.Tensor]) -> Manifest:
    """Overwrite the tensors of `state` (plain or DTensor) with those of checkpoint `name`. Every rank calls it; no collective.

    Each rank reads and verifies only the chunks that it needs. `manifest.resume` tells where to go on.
    Raises DamagedCheckpointError (contents are not what the manifest says), ConfigError (other names, shapes or dtypes
    than the engine's, both lists in the message), StorageError (not visible from this host, read error).
    """
    raise NotImplementedError
