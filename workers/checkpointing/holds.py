"""Who needs which checkpoint: what retention has to leave alone. Knows no torch.

A holder is a file, `holds/<checkpoint>/<holder>` on the run's storage, so that anybody who sees the storage can hold
and none need be asked. A pin and a job hold until they let go. A reader holds by a lease, which it renews as long as
it reads: one that was killed costs nobody anything. Leases run on the storage's clock, which all sides share.

No lock is needed: a holder first writes its file and then looks whether the checkpoint is published; retention first
takes the publication back and then looks for holders, and publishes again where there is one.
"""

import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from workers.checkpointing.storage import Storage, open_storage
from workers.contract.rundir import HOLDS
from workers.errors import StorageError

PIN: Final = "pin"  # the holder that a person is
LEASE_SECONDS: Final = 600.0
_READER: Final = "reader-"


def hold(run_dir: str, name: str, holder: str) -> None:
    """Hold a checkpoint until `release`; look that it is published only afterwards. Raises StorageError."""
    storage = open_storage(run_dir)
    storage.make_directory(f"{HOLDS}/{name}")
    storage.publish(f"{HOLDS}/{name}/{holder}", b"")


def release(run_dir: str, name: str, holder: str) -> None:
    """Let go. Who does not hold may do so, too. Raises StorageError."""
    open_storage(run_dir).remove(f"{HOLDS}/{name}/{holder}")


def holders(storage: Storage, name: str, *, now: float | None) -> tuple[str, ...]:
    """Return who holds a checkpoint. `storage` is the run's; `now` its own clock's time, None: no lease lapses."""
    found = storage.files(f"{HOLDS}/{name}")
    return tuple(holder for holder in found if not _has_lapsed(storage, name, holder, now))


def all_holders(run_dir: str) -> Mapping[str, tuple[str, ...]]:
    """Return who holds what, by checkpoint; readers that died without a word among them."""
    storage = open_storage(run_dir)
    return {name: holders(storage, name, now=None) for name in storage.directories(HOLDS)}


def forget(storage: Storage, name: str) -> None:
    """Remove what lapsed leases left of a checkpoint that is gone."""
    storage.remove_tree(f"{HOLDS}/{name}")


def _has_lapsed(storage: Storage, name: str, holder: str, now: float | None) -> bool:
    if now is None or not holder.startswith(_READER):
        return False
    renewed = storage.modified(f"{HOLDS}/{name}/{holder}")
    return renewed is None or now - renewed > LEASE_SECONDS


@contextmanager
def reading(run_dir: str, name: str) -> Iterator[None]:
    """Hold a checkpoint while the `with` block reads it.

    Where nothing may be written there is no lease: files of a path are then safe once they are open, objects of a
    store are not, and a reader finds them missing.
    """
    reader, is_over = f"{_READER}{secrets.token_hex(8)}", threading.Event()

    def renew() -> None:
        while not is_over.wait(LEASE_SECONDS / 4):
            with suppress(StorageError):
                hold(run_dir, name, reader)

    with suppress(StorageError):
        hold(run_dir, name, reader)
    thread = threading.Thread(target=renew, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        with suppress(StorageError):
            release(run_dir, name, reader)
