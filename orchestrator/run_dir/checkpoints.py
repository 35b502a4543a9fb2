"""Published checkpoints, from their manifests alone."""

from datetime import UTC

from pydantic import ValidationError

from orchestrator.errors import StorageUnavailableError
from orchestrator.run_dir.storage import RunStorage
from workers.contract.fence import Fence
from workers.contract.location import join
from workers.contract.manifest import MANIFEST_NAME, CheckpointId, Manifest
from workers.contract.rundir import CHECKPOINTS, FENCE, HOLDS
from workers.contract.stored import StoredCheckpoint


def list_checkpoints(location: str) -> tuple[StoredCheckpoint, ...]:
    """Every published checkpoint of a run's storage, newest first. Raises StorageUnavailableError.

    What has no readable manifest of its own name, or was published behind the fence, is none.
    """
    storage = RunStorage(location)
    fence = _fence(storage)
    named = map(CheckpointId.parse, storage.names(CHECKPOINTS))
    ids = [one for one in named if one is not None and fence.honours(one)]
    held = set(storage.names(HOLDS))
    found = (_look_at(storage, one, held) for one in sorted(ids, key=lambda one: one.age_key, reverse=True))
    return tuple(checkpoint for checkpoint in found if checkpoint is not None)


def _look_at(storage: RunStorage, named: CheckpointId, held: set[str]) -> StoredCheckpoint | None:
    manifest = _read_manifest(storage, named)
    if manifest is None:
        return None
    at = storage.modified(join(CHECKPOINTS, str(named), MANIFEST_NAME))
    holders = storage.names(join(HOLDS, str(named))) if str(named) in held else []
    return StoredCheckpoint.of(
        manifest, published_at=None if at is None else at.astimezone(UTC), holders=tuple(holders)
    )


def is_published(storage: RunStorage, name: str) -> bool:
    """Whether a checkpoint of this name is published now. Raises StorageUnavailableError."""
    named = CheckpointId.parse(name)
    return named is not None and _read_manifest(storage, named) is not None


def _fence(storage: RunStorage) -> Fence:
    content = storage.read(FENCE)
    try:
        return Fence() if content is None else Fence.from_json(content)
    except ValidationError as error:
        raise StorageUnavailableError(f"{join(storage.location, FENCE)} is not a fence file") from error


def _read_manifest(storage: RunStorage, named: CheckpointId) -> Manifest | None:
    """Read a manifest; None where there is none: being written, being deleted, or damaged."""
    content = storage.read(join(CHECKPOINTS, str(named), MANIFEST_NAME))
    if content is None:
        return None
    try:
        manifest = Manifest.from_json(content)
    except ValidationError:
        return None
    return manifest if manifest.checkpoint == named else None
