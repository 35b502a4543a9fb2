"""Where a Ray of our own lives on this machine. Ray reads its authentication mode while it is imported, so this comes first."""

import secrets
import shutil
import tempfile
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def local_home(environment: MutableMapping[str, str]) -> Iterator[Path]:
    """Make a short private temp dir with a fresh token, and point Ray to it. Enter it before Ray is imported.

    Short because socket paths are limited to 107 bytes. Removed on the way out.
    """
    home = Path(tempfile.mkdtemp(prefix="sy-", dir="/tmp"))
    token = home / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32), encoding="utf-8")
    environment.update(
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN_PATH=str(token),
        RAY_USAGE_STATS_ENABLED="0",
        RAY_TRAIN_V2_ENABLED="1",
    )
    environment.pop("RAY_ADDRESS", None)
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)
