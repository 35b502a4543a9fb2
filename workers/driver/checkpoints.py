"""The driver's hands on checkpoint storage: it chooses where a round begins, once for all ranks."""

import secrets
from collections.abc import Callable

from workers.checkpointing import catalog, holds
from workers.checkpointing.catalog import Damaged
from workers.checkpointing.fence import FencedError, check_fence
from workers.contract.events import EventKind
from workers.contract.launch import LaunchRequest, Origin
from workers.contract.manifest import Manifest
from workers.driver.effects import Chosen, NotChosen, Say, StopAsked
from workers.errors import StorageError


class Checkpoints:
    """Those of one generation's job, and the origin of a fork."""

    def __init__(self, request: LaunchRequest, say: Callable[[Say], object]) -> None:
        self._request = request
        self._say = say
        self._told_damaged: set[str] = set()
        self._holds_origin = request.origin is not None

    def choose(self, name: str | None) -> Chosen | NotChosen | StopAsked:
        """Choose `name`, or the newest published. A generation that was superseded chooses no more.

        A fork that has published nothing yet begins with its origin; it never begins from step 0 instead.
        """
        try:
            check_fence(self._request.storage, self._request.generation)
        except FencedError as error:
            return StopAsked(reason=str(error), lost=True)
        found = catalog.survey(self._request.storage)
        for damaged in found.damaged:
            self._tell_damaged(damaged.name, damaged.reason)
        if name is not None:
            named = next((m for m in found.published if str(m.checkpoint) == name), None)
            if named is None:
                return NotChosen(reason=f"there is no published checkpoint {name} in {self._request.storage}")
            return _chosen(named)
        newest = catalog.choose(found)
        if newest is None and self._request.origin is not None:
            return self._choose_origin(self._request.origin)
        if newest is None and found.damaged:
            return NotChosen(
                reason=f"all checkpoints in {self._request.storage} are damaged ({len(found.damaged)}), and training does "
                "not begin again from step 0 by itself; submit the job anew for that, or fork another job's checkpoint "
                "with --resume-from"
            )
        return _chosen(newest)

    def _choose_origin(self, origin: Origin) -> Chosen | NotChosen:
        what = f"checkpoint {origin.checkpoint} of job {origin.job_id}, which this one begins with,"
        if origin.checkpoint in self._told_damaged:
            return NotChosen(reason=f"{what} is damaged: its contents do not match their digests")
        match catalog.read_manifest(origin.run, origin.checkpoint):
            case None:
                return NotChosen(reason=f"{what} is not published in {origin.run} any more")
            case Damaged(reason=reason):
                return NotChosen(reason=f"{what} is damaged: {reason}")
            case Manifest() as manifest:
                return _chosen(manifest, run=origin.run)

    def condemn(self, name: str) -> None:
        """Take a checkpoint whose contents failed out of the catalog. Another job's is left to that job."""
        origin = self._request.origin
        if origin is None or name != origin.checkpoint:
            catalog.condemn(self._request.storage, name)
        self._tell_damaged(name, "its contents do not match their digests")

    def let_go_of_origin(self) -> None:
        """Let a fork's origin be deleted: it has a checkpoint of its own now."""
        if self._holds_origin:
            self._holds_origin = not let_go_of_origin(self._request)

    def _tell_damaged(self, name: str, reason: str) -> None:
        if name in self._told_damaged:
            return
        self._told_damaged.add(name)
        message = f"checkpoint {name} is damaged: {reason}"
        data = {"checkpoint": name, "reason": reason}
        self._say(Say(kind=EventKind.CHECKPOINT_DAMAGED, message=message, data=data))


def let_go_of_origin(request: LaunchRequest) -> bool:
    """Hold a fork's origin no longer; False where its storage does not answer."""
    origin = request.origin
    if origin is None:
        return True
    try:
        holds.release(origin.run, origin.checkpoint, origin.holder(request.job_id))
    except StorageError:
        return False
    return True


def _chosen(manifest: Manifest | None, run: str | None = None) -> Chosen:
    return Chosen(
        resume_from=str(manifest.checkpoint) if manifest is not None else None,
        run=run,
        step=manifest.resume.step if manifest is not None else 0,
        nonce=secrets.token_hex(4),
    )
