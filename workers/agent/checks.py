"""What must hold on a node before a rank may train there: our version, and the job's storage in sight."""

from pathlib import Path

from pydantic import ValidationError

import workers
from workers.checkpointing.storage import open_storage
from workers.contract.failure import FailureClass
from workers.contract.launch import LaunchRequest
from workers.contract.location import join
from workers.contract.rundir import request_name
from workers.errors import MissingError, StorageError

Problem = tuple[FailureClass, str]


def check_node(request: LaunchRequest, *, installed_version: str) -> Problem | None:
    """Return what keeps this node from training, or None."""
    return _check_version(request, installed_version) or _check_storage(request)


def _check_version(request: LaunchRequest, installed: str) -> Problem | None:
    if installed == request.version:
        return None
    where = Path(workers.__file__).parent
    return (
        FailureClass.CONFIG,
        f"runs shardyard {installed} (from {where}), the service runs {request.version}: "
        "install the service's version in the node's image, or ship its wheel (docs/deploy.md)",
    )


def _check_storage(request: LaunchRequest) -> Problem | None:
    """Look for the request that the driver wrote there just now."""
    name = request_name(request.generation)
    try:
        seen = LaunchRequest.from_json(open_storage(request.storage).read(name))
    except MissingError:
        seen, why = None, ""
    except (StorageError, ValidationError) as error:
        seen, why = None, f" ({error})"
    else:
        why = ", another one lies there"
    if seen == request:
        return None
    return (
        FailureClass.CONFIG,
        f"does not see {join(request.storage, name)}, which the driver wrote{why}: checkpoint.storage_path must be storage that all nodes share",
    )
