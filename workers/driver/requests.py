"""The launch requests on a run's storage: what each generation was asked to do. Knows neither Ray nor torch."""

from pydantic import ValidationError

from workers.checkpointing.fence import raise_fence
from workers.checkpointing.storage import open_storage
from workers.contract.launch import LaunchRequest
from workers.contract.location import join
from workers.contract.rundir import generation_of_request, request_name
from workers.errors import StorageError


def take_charge(request: LaunchRequest) -> None:
    """Write the request where agents look for it, and shut older generations out. Raises StorageError.

    It holds the job's `runtime.env`, so nobody but the user whose job this is reads it.
    """
    storage = open_storage(request.storage)
    storage.make_directory(".")
    storage.publish(request_name(request.generation), request.to_json().encode(), is_private=True)
    raise_fence(request.storage, request.generation)


def newest_request(run_dir: str) -> LaunchRequest | None:
    """Read the request of the newest generation that took charge; None where there is none. Raises StorageError."""
    storage = open_storage(run_dir)
    numbers = [n for name in storage.files(".") if (n := generation_of_request(name)) is not None]
    if not numbers:
        return None
    name = request_name(max(numbers))
    try:
        return LaunchRequest.from_json(storage.read(name))
    except ValidationError as error:
        raise StorageError(f"{join(run_dir, name)} is no launch request of this version") from error
