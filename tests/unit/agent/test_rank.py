"""Whose fault an exception is, and how user code leaves."""

from types import SimpleNamespace

import pytest

from workers import errors
from workers.contract.failure import FailureClass
from workers.progress import Progress
from workers.rank import classify, failed_by, place_of


class OutOfMemoryError(RuntimeError):
    """Stands for torch.OutOfMemoryError, which is told by its name."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.ConfigError("x"), FailureClass.CONFIG),
        (errors.RendezvousError("x"), FailureClass.RENDEZVOUS),
        (errors.CollectiveError("x"), FailureClass.INTERNAL),
        (errors.NonFiniteError("x"), FailureClass.NON_FINITE),
        (errors.StorageError("x"), FailureClass.STORAGE),
        (errors.DamagedCheckpointError("c", "why"), FailureClass.CHECKPOINT_DAMAGED),
        (errors.WorkerError("x"), FailureClass.INTERNAL),
        (MemoryError(), FailureClass.OUT_OF_MEMORY),
        (OutOfMemoryError("CUDA out of memory"), FailureClass.OUT_OF_MEMORY),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"),
            FailureClass.OUT_OF_MEMORY,
        ),
        (ValueError("x"), FailureClass.USER_CODE),
        (KeyboardInterrupt(), FailureClass.USER_CODE),
    ],
)
def test_an_exception_has_a_class(error, expected):
    assert classify(error) is expected


def test_last_words_say_where_the_rank_was():
    progress = Progress()
    progress.phase, progress.step = "restore", 7
    said = failed_by(errors.DamagedCheckpointError("step-7", "flipped"), progress)
    assert (said.phase, said.step, said.culprit) == ("restore", 7, "step-7")
    assert "flipped" in said.traceback


@pytest.mark.parametrize(("gpus", "local"), [(0, ("2", "3")), (1, ("0", "1"))])
def test_training_code_is_told_its_place_as_launchers_tell_it(gpus, local):
    """With a GPU each rank sees its own device alone, whose index is 0."""
    order = SimpleNamespace(
        rank=5, world_size=6, local_rank=2, local_world_size=3, request=SimpleNamespace(gpus_per_worker=gpus)
    )
    assert place_of(order) == {
        "RANK": "5",
        "WORLD_SIZE": "6",
        "LOCAL_RANK": local[0],
        "LOCAL_WORLD_SIZE": local[1],
    }
