"""Which checkpoints a run gives up, and how it gives them up without hurting who reads them. Knows no torch."""

import math
from collections.abc import Collection, Iterator, Sequence

from workers.checkpointing import catalog, holds
from workers.checkpointing.storage import open_storage
from workers.contract.location import join
from workers.contract.manifest import MANIFEST_NAME, CheckpointId, Manifest
from workers.contract.rundir import CHECKPOINTS


def to_delete(
    manifests: Sequence[Manifest], keep: int, in_use: Collection[str], *, keep_best: int = 0
) -> list[str]:
    """Names that retention gives up, oldest first.

    All but the newest `keep` and the best `keep_best`, never the newest, never one in use.
    """
    ordered = sorted(manifests, key=lambda manifest: manifest.checkpoint.age_key)
    kept = {*in_use, *(str(manifest.checkpoint) for manifest in best(manifests, keep_best))}
    surplus = ordered[: -max(keep, 1)]
    return [name for name in (str(manifest.checkpoint) for manifest in surplus) if name not in kept]


def best(manifests: Sequence[Manifest], num: int) -> list[Manifest]:
    """Return the `num` with the lowest validation loss, best first; of a run without validation, training loss.

    A loss that is not finite is never among the best. Of equals the older counts: later ones may carry its
    evaluation on.
    """
    is_validated = any(manifest.resume.validation_loss is not None for manifest in manifests)

    def loss(manifest: Manifest) -> float:
        point = manifest.resume
        value = point.validation_loss if is_validated else point.loss_last
        return math.inf if value is None else value

    scored = [manifest for manifest in manifests if math.isfinite(loss(manifest))]
    return sorted(scored, key=lambda manifest: (loss(manifest), manifest.checkpoint.age_key))[:num]


def retire(
    run_dir: str, manifests: Sequence[Manifest], *, newest: CheckpointId, keep: int, keep_best: int
) -> Iterator[str]:
    """Delete what retention gives up now that `newest` is published, and yield each name when it is gone.

    What is newer than `newest` was passed over when the round began, and stays. What somebody holds stays as well,
    and is looked at again after the next save. Raises StorageError.
    """
    storage = open_storage(run_dir)
    now = storage.modified(join(CHECKPOINTS, str(newest), MANIFEST_NAME))
    older = [manifest for manifest in manifests if manifest.checkpoint.age_key <= newest.age_key]
    for name in to_delete(older, keep, in_use=(str(newest),), keep_best=keep_best):
        if holds.holders(storage, name, now=now):
            continue
        catalog.unpublish(run_dir, name)
        if holds.holders(storage, name, now=now):  # it came while this looked
            catalog.republish(run_dir, name)
            continue
        catalog.delete(run_dir, name)
        holds.forget(storage, name)
        yield name
