"""Archives that Ray unpacks on the nodes. Each names itself by its content, so that nothing is shipped twice."""

import hashlib
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import distribution
from importlib.resources import as_file, files
from pathlib import Path
from typing import IO, Final

_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the oldest that zip knows: equal content gives equal archives
_BLOCK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """An archive on disk, at its beginning; whoever got it closes it. `name` changes with any byte of its content."""

    name: str
    file: IO[bytes]


def archive(entries: Iterable[tuple[Path, str]]) -> Package:
    """Pack files under the given names, in the given order; the caller closes the result. Raises OSError."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 -- handed to the caller
    try:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made:
            for path, name in entries:
                entry = zipfile.ZipInfo(name, _EPOCH)
                entry.external_attr = (path.stat().st_mode & 0o777) << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                with path.open("rb") as source, made.open(entry, "w") as target:
                    while block := source.read(_BLOCK_BYTES):
                        target.write(block)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:32]
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return Package(name=f"_ray_pkg_{digest}.zip", file=file)


def own_package() -> Package:
    """Pack `workers` as it is installed here, with the metadata by which nodes tell its version."""
    found = distribution("shardyard")
    with as_file(files("workers")) as folder, tempfile.TemporaryDirectory() as scratch:
        metadata = Path(scratch) / "METADATA"
        metadata.write_text(
            f"Metadata-Version: 2.1\nName: shardyard\nVersion: {found.version}\n", encoding="utf-8"
        )
        return archive([*_modules(folder), (metadata, f"shardyard-{found.version}.dist-info/METADATA")])


def _modules(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path, f"{folder.name}/{path.relative_to(folder).as_posix()}"
