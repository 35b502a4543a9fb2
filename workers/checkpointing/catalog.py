"""What is published in a run directory: survey it, choose from it, delete from it. Knows no torch.

Every reader goes through `survey`, so nobody ever sees a directory that was not published whole.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from workers.checkpointing.fence_file import Fence, load_fence
from workers.checkpointing.manifest_file import ManifestError, contradiction, decode
from workers.checkpointing.storage import LocalStorage, MissingError, open_storage
from workers.contract.manifest import MANIFEST_NAME, CheckpointId, Manifest
from workers.contract.rundir import checkpoints_dir

DELETED_NAME: Final = "manifest.deleted"  # half deleted: the rest goes with the next sweep
CONDEMNED_NAME: Final = "manifest.damaged"


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


def checkpoint_storage(run_dir: str) -> LocalStorage:
    """Open the storage that holds one directory per checkpoint."""
    return open_storage(str(checkpoints_dir(run_dir)))


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


def _look_at(storage: LocalStorage, name: str, fence: Fence) -> Manifest | Damaged | None:
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


def _file_problem(storage: LocalStorage, name: str, manifest: Manifest) -> str | None:
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
    while (parent := line[-1].parent) in by_name:
        line.append(by_name[parent])
        assert line[-1].resume.step <= line[-2].resume.step, "a parent is never ahead of its child"
    return tuple(reversed(line))


def to_delete(manifests: Sequence[Manifest], keep: int, in_use: Collection[str]) -> list[str]:
    """Names that retention gives up, oldest first: all but the newest `keep`, never the newest, never one in use."""
    ordered = sorted(manifests, key=lambda manifest: manifest.checkpoint.age_key)
    surplus = ordered[: -max(keep, 1)]
    return [name for name in (str(manifest.checkpoint) for manifest in surplus) if name not in in_use]


def delete(run_dir: str, name: str) -> None:
    """Delete a checkpoint: unpublished first, then its files. Already gone is fine. Raises StorageError."""
    assert CheckpointId.parse(name) is not None, f"{name} is no checkpoint's name"
    storage = checkpoint_storage(run_dir)
    storage.rename(f"{name}/{MANIFEST_NAME}", f"{name}/{DELETED_NAME}")
    storage.remove_tree(name)


def condemn(run_dir: str, name: str) -> None:
    """Take back the publication of a checkpoint whose contents failed on load; its files stay for a look.

    The driver calls it when a rank raised DamagedCheckpointError: else retention would count it as the newest.
    """
    assert CheckpointId.parse(name) is not None, f"{name} is no checkpoint's name"
    checkpoint_storage(run_dir).rename(f"{name}/{MANIFEST_NAME}", f"{name}/{CONDEMNED_NAME}")


def sweep_unpublished(run_dir: str, *, generation: int, attempt: int, round_: int) -> list[str]:
    """Remove unpublished leftovers of rounds before this one and return their names. Raises StorageError.

    An older writer that still runs loses its directory, so its save fails: it had no right to publish.
    """
    storage = checkpoint_storage(run_dir)
    swept = []
    for name in survey(run_dir).unpublished:
        checkpoint = CheckpointId.parse(name)
        assert checkpoint is not None
        if (checkpoint.generation, checkpoint.attempt, checkpoint.round) < (generation, attempt, round_):
            storage.remove_tree(name)
            swept.append(name)
    return swept
