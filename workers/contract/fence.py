"""Who is in charge of a run, and what was published when it took over."""

from workers.contract.base import Message
from workers.contract.manifest import CheckpointId


class Fence(Message):
    """The content of the fence file; without one nobody has taken charge yet."""

    generation: int = -1  # -1: nobody
    inherited: tuple[str, ...] = ()  # checkpoints that were handed down to it, by name

    def honours(self, checkpoint: CheckpointId) -> bool:
        """Whether a published checkpoint counts: of the generation in charge (or newer), or handed down to it."""
        return checkpoint.generation >= self.generation or str(checkpoint) in self.inherited
