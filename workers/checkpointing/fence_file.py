"""The bytes of the fence: who is in charge of a run, and what it took over. Knows no torch."""

from collections.abc import Collection

from pydantic import ValidationError

from workers.checkpointing.storage import open_storage
from workers.contract.fence import Fence
from workers.contract.location import join
from workers.contract.rundir import FENCE
from workers.errors import MissingError, StorageError


def load_fence(run_dir: str) -> Fence:
    """Read the fence. Raises StorageError where it cannot be read, since guessing would let an old writer publish."""
    try:
        return Fence.from_json(open_storage(run_dir).read(FENCE))
    except MissingError:
        return Fence()
    except ValidationError as error:
        raise StorageError(f"{join(run_dir, FENCE)} is not a fence file") from error


def save_fence(run_dir: str, generation: int, inherited: Collection[str]) -> None:
    """Write the fence; durable on return."""
    storage = open_storage(run_dir)
    storage.make_directory(".")
    fence = Fence(generation=generation, inherited=tuple(sorted(inherited)))
    storage.publish(FENCE, fence.to_json().encode())
