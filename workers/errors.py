"""Errors that a rank tells apart; `rank` maps each to its FailureClass. Whatever else is raised is the user's code."""


class WorkerError(Exception):
    """Root of our own errors."""


class ConfigError(WorkerError):
    """The job cannot train as it is written: 0 trainable parameters, other data than the checkpoint's."""


class RendezvousError(WorkerError):
    """The ranks did not meet in time."""


class CollectiveError(WorkerError):
    """The backend computes something else than it says (start-up self-test)."""


class NonFiniteError(WorkerError):
    """Loss or gradient norm is NaN or infinite; weights were left as they were before the step."""


class StorageError(WorkerError):
    """A write or read of checkpoint storage failed."""


class MissingError(StorageError):
    """What should be read is not there."""


class OpsError(WorkerError):
    """DeepSpeed's ops cannot be built on this machine: says what is missing."""


class DamagedCheckpointError(WorkerError):
    """A published checkpoint does not hold what its manifest says. Carries the checkpoint's name."""

    def __init__(self, checkpoint: str, reason: str) -> None:
        super().__init__(f"checkpoint {checkpoint} is damaged: {reason}")
        self.checkpoint = checkpoint
        self.reason = reason
