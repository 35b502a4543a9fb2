"""Export: one published checkpoint -> a directory with its weights as safetensors, and what tells how to read them.

Streams chunk by chunk, each verified, so it holds one chunk in memory whatever the model's size. Needs no cluster and
no process group. Weights keep the dtype of the optimizer's master copy.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from workers.checkpointing import catalog, holds, inspect
from workers.checkpointing.chunks import ChunkFiles, open_checkpoint
from workers.checkpointing.local_storage import LocalStorage
from workers.checkpointing.storage import open_storage
from workers.contract.config import TrainingConfig
from workers.contract.manifest import CheckpointId, Manifest
from workers.contract.rundir import TOKENIZER
from workers.contract.stored import Exported
from workers.errors import ConfigError, MissingError, StorageError
from workers.export_shape import FILE_NAMES, WEIGHTS_NAME, Shape, shape_of
from workers.safetensors_files import cut_into_files, index_of, is_part_of, write_file

DEFAULT_SHARD_BYTES: Final = 5_000_000_000  # what transformers itself writes by default
_EXPORTED_PREFIXES: Final = ("model.", "buffer.")  # a module's own state; the optimizer's stays behind


def export(
    run_dir: str,
    wanted: str | None,
    config: TrainingConfig,
    to: Path,
    *,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> Exported:
    """Export a checkpoint, by step or name (None: the newest published), to the directory `to`, and say which it was.

    Weights above `max_shard_bytes` go into several files and an index of them, as transformers reads them.
    `to` is there whole or not at all; an earlier export in it is replaced, anything else in it is left alone and
    refused with ConfigError. A checkpoint that retention gives up meanwhile is still exported whole.
    Raises DamagedCheckpointError, StorageError.
    """
    with ExitStack() as stack:
        stack.enter_context(_as_storage_error(to))
        _refuse_foreign(to)
        name, passed_over = _choose(run_dir, wanted)
        stack.enter_context(holds.reading(run_dir, name))
        files = stack.enter_context(open_checkpoint(run_dir, name).open_all())
        to.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(mkdtemp(prefix=f".{to.name}-", dir=to.parent))
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        shape = shape_of(config, files.manifest, _tokenizer_of(run_dir))
        texts = {**shape.texts, **_write_weights(temporary, files, shape, max_shard_bytes)}
        for text_name, text in texts.items():
            _write_text(temporary / text_name, text)
        temporary.chmod(0o755)
        _put_in_place(temporary, to)
    return Exported(export_path=to, checkpoint=name, step=files.manifest.resume.step, passed_over=passed_over)


def _choose(run_dir: str, wanted: str | None) -> tuple[str, Mapping[str, str]]:
    """Return the checkpoint's name, and the damaged ones that would have come before it."""
    if wanted is not None:
        return inspect.find(run_dir, wanted), {}
    found = catalog.survey(run_dir)
    newest = catalog.choose(found)
    damaged = {one.name: one.reason for one in found.damaged}
    if newest is None:
        also = (
            f"; damaged: {'; '.join(f'{name}: {reason}' for name, reason in damaged.items())}"
            if damaged
            else ""
        )
        raise MissingError(f"{run_dir} holds no published checkpoint{also}")
    parsed = ((name, reason, CheckpointId.parse(name)) for name, reason in damaged.items())
    age = newest.checkpoint.age_key
    return str(newest.checkpoint), {name: reason for name, reason, one in parsed if one and one.age_key > age}


def _tokenizer_of(run_dir: str) -> str | None:
    """The tokenizer that made the run's tokens: without it nobody can tell what an id means."""
    try:
        return open_storage(run_dir).read(TOKENIZER).decode()
    except MissingError:
        return None


def _write_weights(to: Path, files: ChunkFiles, shape: Shape, max_shard_bytes: int) -> dict[str, str]:
    """Write the weights, and return the texts that belong beside them: the index, where there are several files."""
    manifest = files.manifest
    names = _exported_names(manifest, shape.rename)
    parts = cut_into_files(manifest, names, shape.weights_name, max_file_bytes=max_shard_bytes)
    if len(parts) > 1 and shape.weights_name != WEIGHTS_NAME:
        raise ConfigError(
            f"an adapter is read from one file only: {shape.weights_name} would be {len(parts)}, raise max_shard_bytes"
        )
    aliases = {_short(alias): _short(stored) for alias, stored in manifest.aliases.items()}
    for file_name, part in parts.items():
        write_file(to / file_name, files, part, aliases=aliases)
    return index_of(manifest, parts, shape.weights_name) if len(parts) > 1 else {}


def _exported_names(manifest: Manifest, rename: Callable[[str], str | None]) -> dict[str, str]:
    """Name in the export -> name in the checkpoint."""
    return {
        renamed: stored
        for prefix in _EXPORTED_PREFIXES
        for stored in manifest.tensors
        if stored.startswith(prefix) and (renamed := rename(stored.removeprefix(prefix))) is not None
    }


def _short(name: str) -> str:
    for prefix in _EXPORTED_PREFIXES:
        name = name.removeprefix(prefix) if name.startswith(prefix) else name
    return name


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _refuse_foreign(to: Path) -> None:
    if to.exists() and (not to.is_dir() or any(not _is_ours(path.name) for path in to.iterdir())):
        raise ConfigError(f"{to} holds something else than an export: name another directory")


def _is_ours(name: str) -> bool:
    return name in FILE_NAMES or is_part_of(name, WEIGHTS_NAME)


def _put_in_place(temporary: Path, to: Path) -> None:
    if to.exists():
        retired = Path(mkdtemp(prefix=f".{to.name}-old-", dir=to.parent))
        to.replace(retired)
        temporary.replace(to)
        shutil.rmtree(retired)
    else:
        temporary.replace(to)
    LocalStorage(to.parent).sync_directory(".")


@contextmanager
def _as_storage_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"export to {path}: {error.strerror}") from error
