"""What is published in a run directory: survey it, choose from it, delete from it. Knows no torch.

Every reader goes through `survey`, so nobody ever sees a directory that was not published whole.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from workers.checkpointing.fence_file import load_fence
from workers.checkpointing.holds import all_holders
from workers.checkpointing.manifest_file import ManifestError, contradiction, decode
from workers.checkpointing.storage import Storage, open_storage
from workers.contract.fence import Fence
from workers.contract.location import join
from workers.contract.manifest import MANIFEST_NAME, CheckpointId, Manifest
from workers.contract.rundir import CHECKPOINTS
from workers.errors import MissingError

DELETED_NAME: Final = "manifest.deleted"  # being deleted: what a crash left of it goes with the next sweep
CONDEMNED_NAME: Final = "manifest.damaged"  # its contents failed when it was loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """A checkpoint that was published once and is not whole any more."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What lies in a run directory at one moment."""

    published: tuple[Manifest, ...] = ()  # oldest first, by age_key; sizes checked, contents not
    damaged: tuple[Damaged, ...] = ()
    unpublished: tuple[
        str, ...
    ] = ()  # no manifest (yet): a save in flight, a leftover, or one below the fence


def checkpoint_storage(run_dir: str) -> Storage:
    """Open the storage that holds one directory per checkpoint."""
    return open_storage(join(run_dir, CHECKPOINTS))


def survey(run_dir: str) -> Survey:
    """Look at every checkpoint directory. A missing run directory holds nothing. Raises StorageError."""
    storage = checkpoint_storage(run_dir)
    fence = load_fence(run_dir)
    published: list[Manifest] = []
    damaged: list[Damaged] = []
    unpublished: list[str] = []
    for name in storage.directories():
        checkpoint = CheckpointId.parse(name)
        if checkpoint is None:
            continue  # not ours: never touched
        match _look_at(storage, name, fence):
            case Manifest() as manifest:
                published.append(manifest)
            case Damaged() as finding:
                damaged.append(finding)
            case None:
                unpublished.append(name)
    published.sort(key=lambda manifest: manifest.checkpoint.age_key)
    return Survey(published=tuple(published), damaged=tuple(damaged), unpublished=tuple(unpublished))


def _look_at(storage: Storage, name: str, fence: Fence) -> Manifest | Damaged | None:
    try:
        manifest = decode(storage.read(f"{name}/{MANIFEST_NAME}"))
    except MissingError:
        if storage.size(f"{name}/{CONDEMNED_NAME}") is not None:
            return Damaged(name=name, reason="its contents failed when it was loaded")
        return None
    except ManifestError as error:
        return Damaged(name=name, reason=f"{MANIFEST_NAME}: {error}")
    if str(manifest.checkpoint) != name:
        return Damaged(name=name, reason=f"{MANIFEST_NAME} belongs to {manifest.checkpoint}")
    if not fence.honours(manifest.checkpoint):
        return None
    reason = contradiction(manifest) or _file_problem(storage, name, manifest)
    if reason is None:
        return manifest
    if storage.size(f"{name}/{MANIFEST_NAME}") is None:
        return None  # somebody deletes it just now
    return Damaged(name=name, reason=reason)


def _file_problem(storage: Storage, name: str, manifest: Manifest) -> str | None:
    for file, expected in manifest.files.items():
        found = storage.size(f"{name}/{file}")
        if found is None:
            return f"{file} is missing"
        if found != expected:
            return f"{file} has {found} of {expected} bytes"
    return None


def read_manifest(run_dir: str, name: str) -> Manifest | Damaged | None:
    """Look at one checkpoint; None where it is not published."""
    return _look_at(checkpoint_storage(run_dir), name, load_fence(run_dir))


def published(run_dir: str) -> list[Manifest]:
    """Published checkpoints, oldest first."""
    return list(survey(run_dir).published)


def choose(found: Survey, exclude: Collection[str] = ()) -> Manifest | None:
    """Return the newest published checkpoint whose name is not in `exclude`; None: start from step 0."""
    candidates = [m for m in found.published if str(m.checkpoint) not in exclude]
    return max(candidates, key=lambda m: m.checkpoint.age_key, default=None)


def lineage(found: Survey, manifest: Manifest) -> tuple[Manifest, ...]:
    """Return the ancestors of `manifest` that are still published, oldest first, `manifest` itself last."""
    by_name = {str(m.checkpoint): m for m in found.published}
    line = [manifest]
    while line[-1].parent_run is None and (parent := line[-1].parent) in by_name:
        line.append(by_name[parent])
        assert line[-1].resume.step <= line[-2].resume.step, "a parent is never ahead of its child"
    return tuple(reversed(line))


def unpublish(run_dir: str, name: str) -> None:
    """Take back a publication; `republish` undoes it. Not published is fine. Raises StorageError."""
    assert CheckpointId.parse(name) is not None, f"{name} is no checkpoint's name"
    checkpoint_storage(run_dir).rename(f"{name}/{MANIFEST_NAME}", f"{name}/{DELETED_NAME}")


def republish(run_dir: str, name: str) -> bool:
    """Publish again what `unpublish` took back and nobody has begun to delete; False where there is no such thing."""
    return checkpoint_storage(run_dir).rename(f"{name}/{DELETED_NAME}", f"{name}/{MANIFEST_NAME}")


def delete(run_dir: str, name: str) -> None:
    """Delete a checkpoint: unpublished first, then its files. Already gone is fine. Raises StorageError."""
    unpublish(run_dir, name)
    checkpoint_storage(run_dir).remove_tree(name)


def condemn(run_dir: str, name: str) -> None:
    """Take back the publication of a checkpoint whose contents failed on load; its files stay for a look.

    The driver calls it when a rank raised DamagedCheckpointError: else retention would count it as the newest.
    """
    assert CheckpointId.parse(name) is not None, f"{name} is no checkpoint's name"
    checkpoint_storage(run_dir).rename(f"{name}/{MANIFEST_NAME}", f"{name}/{CONDEMNED_NAME}")


def sweep_unpublished(run_dir: str, *, generation: int, attempt: int, round_: int) -> list[str]:
    """Remove unpublished leftovers of rounds before this one and return their names. Raises StorageError.

    An older writer that still runs loses its directory, so its save fails: it had no right to publish. What was
    being deleted when its deleter died, and is held, is published again.
    """
    storage = checkpoint_storage(run_dir)
    held = all_holders(run_dir)
    swept = []
    for name in survey(run_dir).unpublished:
        checkpoint = CheckpointId.parse(name)
        assert checkpoint is not None
        if held.get(name) and republish(run_dir, name):
            continue
        if (checkpoint.generation, checkpoint.attempt, checkpoint.round) < (generation, attempt, round_):
            storage.remove_tree(name)
            swept.append(name)
    return swept
