"""The generation fence: once generation n has taken over, nobody below it publishes. Knows no torch."""

from workers.errors import StorageError


class FencedError(StorageError):
    """A newer generation has taken over this run: the caller shall end."""


def read_fence(run_dir: str) -> int:
    """Return the generation in charge; -1 where none has taken charge yet."""
    raise NotImplementedError


def raise_fence(run_dir: str, generation: int) -> None:
    """Take charge of the run. Durable on return; the same generation twice is fine; FencedError if a newer one is there.

    Checkpoints that are published now are inherited; what an older generation publishes later is ignored.
    """
    raise NotImplementedError
