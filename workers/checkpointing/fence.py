"""The generation fence: once generation n has taken over, nobody below it publishes. Knows no torch.

The fence keeps the names that were published when it was raised. So a checkpoint that an older writer still
publishes, because it looked at the fence just before, is told from those that were handed down.
"""

from workers.checkpointing.catalog import published
from workers.checkpointing.fence_file import load_fence, save_fence
from workers.errors import StorageError


class FencedError(StorageError):
    """A newer generation has taken over this run: the caller shall end."""


def read_fence(run_dir: str) -> int:
    """Return the generation in charge; -1 where none has taken charge yet."""
    return load_fence(run_dir).generation


def raise_fence(run_dir: str, generation: int) -> None:
    """Take charge of the run. Durable on return; the same generation twice is fine; FencedError if a newer one is there.

    Checkpoints that are published now are inherited; what an older generation publishes later is ignored.
    """
    check_fence(run_dir, generation)
    if read_fence(run_dir) < generation:
        save_fence(run_dir, generation, [str(manifest.checkpoint) for manifest in published(run_dir)])


def check_fence(run_dir: str, generation: int) -> None:
    """Raise FencedError if a generation newer than `generation` is in charge."""
    in_charge = read_fence(run_dir)
    if in_charge > generation:
        raise FencedError(
            f"generation {generation} is superseded: generation {in_charge} is in charge of {run_dir}"
        )
