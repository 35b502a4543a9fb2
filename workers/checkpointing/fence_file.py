"""The bytes of the fence: who is in charge of a run, and what it took over. Knows no torch."""

from collections.abc import Collection

from pydantic import ValidationError

from workers.checkpointing.storage import MissingError, open_storage
from workers.contract.base import Message
from workers.contract.manifest import CheckpointId
from workers.contract.rundir import fence_file
from workers.errors import StorageError


class Fence(Message):
    """Who is in charge of a run, and what was published when it took over."""

    generation: int = -1  # -1: nobody has taken charge yet
    inherited: tuple[str, ...] = ()

    def honours(self, checkpoint: CheckpointId) -> bool:
        """Whether a published checkpoint counts: of the generation in charge (or newer), or handed down to it."""
        return checkpoint.generation >= self.generation or str(checkpoint) in self.inherited


def load_fence(run_dir: str) -> Fence:
    """Read the fence. Raises StorageError where it cannot be read, since guessing would let an old writer publish."""
    path = fence_file(run_dir)
    try:
        return Fence.from_json(open_storage(str(path.parent)).read(path.name))
    except MissingError:
        return Fence()
    except ValidationError as error:
        raise StorageError(f"{path} is not a fence file") from error


def save_fence(run_dir: str, generation: int, inherited: Collection[str]) -> None:
    """Write the fence; durable on return."""
    path = fence_file(run_dir)
    storage = open_storage(str(path.parent))
    storage.make_directory(".")
    fence = Fence(generation=generation, inherited=tuple(sorted(inherited)))
    storage.publish(path.name, fence.to_json().encode())
