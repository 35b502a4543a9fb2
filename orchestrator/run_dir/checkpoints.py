"""Published checkpoints, from their manifests alone."""

from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from orchestrator.job_queries import CheckpointFile
from workers.contract.manifest import MANIFEST_NAME, CheckpointId, Manifest
from workers.contract.rundir import checkpoints_dir


def list_checkpoints(run_dir: str) -> tuple[CheckpointFile, ...]:
    """Every published checkpoint, newest first. What has no readable manifest of its own name is none."""
    root = checkpoints_dir(run_dir)
    names = [path.name for path in root.iterdir()] if root.is_dir() else []
    ids = [one for one in map(CheckpointId.parse, names) if one is not None]
    files = (_read(root / str(one), one) for one in sorted(ids, key=lambda one: one.age_key, reverse=True))
    return tuple(file for file in files if file is not None)


def _read(directory: Path, named: CheckpointId) -> CheckpointFile | None:
    path = directory / MANIFEST_NAME
    try:
        text = path.read_bytes()
        modified = path.stat().st_mtime
        manifest = Manifest.from_json(text)
    except (OSError, ValidationError):  # being written, being deleted, or damaged: not published
        return None
    if manifest.checkpoint != named:
        return None
    return CheckpointFile(
        name=str(named),
        step=named.step,
        generation=named.generation,
        attempt=named.attempt,
        round=named.round,
        parent=manifest.parent,
        world_size=manifest.world_size,
        tokens_seen=manifest.resume.tokens_seen,
        total_bytes=manifest.total_bytes,
        published_at=datetime.fromtimestamp(modified, UTC),
    )
