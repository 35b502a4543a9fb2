"""Which token files a path names: one, or those of a directory, whole."""

from collections.abc import Sequence
from pathlib import Path

from workers.data.dataset import DataError
from workers.data.token_file import SUFFIX


def token_files(path: Path) -> Sequence[Path]:
    """Return the token files that `path` names: itself, or those right inside it by name. Raises DataError."""
    path = path.expanduser()
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"data.path: there is no file or directory {path.absolute()} on this node")
    found = sorted(
        file for file in path.glob(f"*{SUFFIX}") if file.is_file() and not file.name.startswith(".")
    )
    if not found:
        raise DataError(f"data.path: no *{SUFFIX} file lies in {path.absolute()}")
    return found
