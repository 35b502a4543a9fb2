"""Where things lie in a run directory, `<storage_root>/<job_id>/`. Names only: nothing here touches a disk."""

from pathlib import Path


def request_file(run_dir: str, generation: int) -> Path:
    """The launch request of a generation, as its driver got it."""
    return Path(run_dir) / f"request.g{generation}.json"


def fence_file(run_dir: str) -> Path:
    """The generation fence: one number; whoever is below it publishes nothing."""
    return Path(run_dir) / "fence"


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


def checkpoints_dir(run_dir: str) -> Path:
    """One directory per checkpoint."""
    return Path(run_dir) / "checkpoints"


def cache_dir(run_dir: str) -> Path:
    """Prepared data, keyed by its digest: beside the run directories, for all jobs of a storage root."""
    return Path(run_dir).parent / "cache"


def tokenizer_file(run_dir: str) -> Path:
    """The `tokenizer.json` that made the run's tokens, where there is one: an export carries it along."""
    return Path(run_dir) / "tokenizer.json"


def export_dir(run_dir: str) -> Path:
    """The exported model."""
    return Path(run_dir) / "export"
