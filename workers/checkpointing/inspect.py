"""What a person may ask of a run's checkpoints: list, verify, pin. Needs the storage alone; knows no torch."""

from collections.abc import Iterator
from datetime import UTC, datetime

from workers.checkpointing import catalog, holds
from workers.checkpointing.chunks import open_checkpoint
from workers.checkpointing.storage import open_storage
from workers.contract.location import join
from workers.contract.manifest import MANIFEST_NAME, CheckpointId, Manifest
from workers.contract.rundir import CHECKPOINTS
from workers.contract.stored import StoredCheckpoint
from workers.errors import DamagedCheckpointError, MissingError


def list_stored(run_dir: str) -> list[StoredCheckpoint]:
    """Return every checkpoint, published or damaged, newest first. Raises StorageError."""
    found, held, storage = catalog.survey(run_dir), holds.all_holders(run_dir), open_storage(run_dir)
    rows = []
    for manifest in found.published:
        name = str(manifest.checkpoint)
        at = storage.modified(join(CHECKPOINTS, name, MANIFEST_NAME))
        published_at = None if at is None else datetime.fromtimestamp(at, UTC)
        rows.append(StoredCheckpoint.of(manifest, published_at=published_at, holders=held.get(name, ())))
    for damaged in found.damaged:
        checkpoint = CheckpointId.parse(damaged.name)
        assert checkpoint is not None
        rows.append(StoredCheckpoint.damaged(checkpoint, damaged.reason))
    return sorted(rows, key=lambda row: (row.step, row.generation, row.attempt, row.round), reverse=True)


def verify_all(run_dir: str, only: str | None = None) -> Iterator[StoredCheckpoint]:
    """Read every byte of every published checkpoint (or of the one that `only` names), newest first; yield what is found.

    Changes nothing: a damaged one is passed over when a round resumes. Costs one read of all that is there.
    """
    wanted = find(run_dir, only) if only is not None else None
    for row in list_stored(run_dir):
        if wanted is None or row.name == wanted:
            yield row.model_copy(update={"problem": row.problem or verify(run_dir, row.name)})


def verify(run_dir: str, name: str) -> str:
    """Read a published checkpoint whole; return what is wrong with it, or nothing. Raises StorageError."""
    try:
        with holds.reading(run_dir, name), open_checkpoint(run_dir, name).open_all() as files:
            chunks = (chunk for tensor in files.manifest.tensors.values() for chunk in tensor.chunks)
            for chunk in sorted(chunks, key=lambda chunk: (chunk.file, chunk.start)):
                files.read(chunk)
    except DamagedCheckpointError as error:
        return error.reason
    return ""


def pin(run_dir: str, wanted: str) -> str:
    """Keep a checkpoint, by step or name, until it is unpinned; return its name. Raises MissingError, StorageError."""
    name = find(run_dir, wanted)
    hold(run_dir, name, holds.PIN)
    return name


def unpin(run_dir: str, wanted: str) -> str:
    """Let go of a pinned checkpoint; return its name. Raises MissingError, StorageError."""
    name = find(run_dir, wanted)
    holds.release(run_dir, name, holds.PIN)
    return name


def hold(run_dir: str, name: str, holder: str) -> None:
    """Hold a published checkpoint until the holder lets go. Raises MissingError where it has gone, StorageError."""
    holds.hold(run_dir, name, holder)
    if not isinstance(catalog.read_manifest(run_dir, name), Manifest):
        holds.release(run_dir, name, holder)
        raise MissingError(f"checkpoint {name} in {run_dir} is not published any more")


def find(run_dir: str, wanted: str) -> str:
    """Return the name of the published checkpoint that `wanted` means: a step, then the newest of it, or a name.

    Raises MissingError, which lists what there is.
    """
    found = catalog.published(run_dir)
    names = [str(m.checkpoint) for m in found if wanted in (str(m.checkpoint), str(m.checkpoint.step))]
    if not names:
        steps = ", ".join(str(m.checkpoint.step) for m in found) or "none"
        raise MissingError(
            f"{run_dir} holds no published checkpoint {wanted}: there are those of steps {steps}"
        )
    return names[-1]
