"""What is published in a run directory: survey it, choose from it, delete from it. Knows no torch.

Every reader goes through `survey`, so nobody ever sees a directory that was not published whole.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from workers.contract.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """A checkpoint that was published once and is not whole any more."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What lies in a run directory at one moment."""

    published: tuple[Manifest, ...]  # oldest first, by age_key; sizes checked, contents not
    damaged: tuple[Damaged, ...]
    unpublished: tuple[str, ...]  # no manifest (yet): a save in flight, a leftover, or one below the fence


def survey(run_dir: str) -> Survey:
    """Look at every checkpoint directory. A missing run directory holds nothing. Raises StorageError."""
    raise NotImplementedError


def published(run_dir: str) -> list[Manifest]:
    """Published checkpoints, oldest first."""
    return list(survey(run_dir).published)


def choose(found: Survey, exclude: Collection[str] = ()) -> Manifest | None:
    """Return the newest published checkpoint whose name is not in `exclude`; None: start from step 0."""
    raise NotImplementedError


def lineage(found: Survey, manifest: Manifest) -> tuple[Manifest, ...]:
    """Return the ancestors of `manifest` that are still published, oldest first, `manifest` itself last."""
    raise NotImplementedError


def to_delete(manifests: Sequence[Manifest], keep: int, in_use: Collection[str]) -> list[str]:
    """Names that retention gives up: all but the newest `keep`, never the newest, never one in use."""
    raise NotImplementedError


def delete(run_dir: str, name: str) -> None:
    """Delete a checkpoint: unpublished first, then its files. Already gone is fine. Raises StorageError."""
    raise NotImplementedError


def condemn(run_dir: str, name: str) -> None:
    """Take back the publication of a checkpoint whose contents failed on load; its files stay for a look.

    The driver calls it when a rank raised DamagedCheckpointError: else retention would count it as the newest.
    """
    raise NotImplementedError


def sweep_unpublished(run_dir: str, *, generation: int, attempt: int, round_: int) -> list[str]:
    """Remove unpublished leftovers of rounds before this one and return their names. Raises StorageError."""
    raise NotImplementedError
