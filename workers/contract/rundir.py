"""Where things lie in a run directory, `<storage_root>/<job_id>/`. Names only: nothing here touches a disk.

What a later life of the job needs lies on its *storage*, which is the run directory itself or a URL; what tells its
story (logs, events, samples) and what belongs to one machine lies in the run directory.
"""

import re
from pathlib import Path
from typing import Final

# ---- on storage, by name below its path or URL

CHECKPOINTS: Final = "checkpoints"  # one directory per checkpoint
FENCE: Final = "fence"  # who is in charge; whoever is below it publishes nothing
HOLDS: Final = "holds"  # who needs which checkpoint: one directory per checkpoint, one file per holder
TOKENIZER: Final = (
    "tokenizer.json"  # what made the run's tokens, where there is one: an export carries it along
)


def request_name(generation: int) -> str:
    """The launch request of a generation, as its driver got it."""
    return f"request.g{generation}.json"


def generation_of_request(name: str) -> int | None:
    """Read the generation out of what `request_name` made; None for any other name."""
    found = re.fullmatch(r"request\.g(\d+)\.json", name)
    return None if found is None else int(found[1])


# ---- in the run directory


def logs_dir(run_dir: str) -> Path:
    """Logs of every rank, attempt and round."""
    return Path(run_dir) / "logs"


def rank_log(run_dir: str, *, generation: int, attempt: int, round_: int, rank: int) -> Path:
    """Standard output and error of one rank process."""
    return logs_dir(run_dir) / f"g{generation}.a{attempt}" / f"r{round_}" / f"rank-{rank}.log"


def driver_log(run_dir: str, *, generation: int) -> Path:
    """What the driver of a generation says."""
    return logs_dir(run_dir) / f"driver.g{generation}.log"


def events_dir(run_dir: str) -> Path:
    """Numbered segments of events, `g<generation>-<first sequence>.jsonl`."""
    return Path(run_dir) / "events"


def samples_dir(run_dir: str) -> Path:
    """Numbered segments of samples, `g<generation>-<n>.jsonl`."""
    return Path(run_dir) / "samples"


def cache_dir(run_dir: str) -> Path:
    """Prepared data, keyed by its digest: beside the run directories, for all jobs of a storage root."""
    return Path(run_dir).parent / "cache"


def export_dir(run_dir: str) -> Path:
    """The exported model."""
    return Path(run_dir) / "export"


# ---- where storage is the run directory


def request_file(run_dir: str, generation: int) -> Path:
    """The launch request of a generation."""
    return Path(run_dir) / request_name(generation)


def fence_file(run_dir: str) -> Path:
    """The generation fence."""
    return Path(run_dir) / FENCE


def checkpoints_dir(run_dir: str) -> Path:
    """The directory of all checkpoints."""
    return Path(run_dir) / CHECKPOINTS


def tokenizer_file(run_dir: str) -> Path:
    """The tokenizer of the run's tokens."""
    return Path(run_dir) / TOKENIZER
