"""DeepSpeed's state in files: the same training, the same checkpoints, nothing left behind, and refused where it cannot be."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import torch
from engine_runs import ENGINES, Trainer, assert_equal_runs, local, reference
from small_tasks import make_task

from workers.engines.deepspeed import library, ops
from workers.engines.deepspeed.disk import check_lockable, check_written
from workers.errors import ConfigError
from workers.world import World

if TYPE_CHECKING:
    from gloo_ranks import Launcher

pytestmark = pytest.mark.torch

needs_ops = pytest.mark.skipif(bool(ops.missing_ops("cpu")), reason="DeepSpeed's ops are not built: make ops")
PLACES: Final = (("nvme", "nvme"), ("none", "nvme"), ("nvme", "none"), ("nvme", "cpu"), ("cpu", "nvme"))


def offload(directory: str, optimizer: str, params: str, **changes: Any) -> dict[str, Any]:
    places = {"optimizer": optimizer, "params": params, "nvme_path": directory}
    return {**ENGINES["deepspeed-3"], "engine__offload": places, **changes}


class InFiles(Trainer):
    """A trainer whose tensors go to files from a size on that small nets have."""

    def __init__(self, *args: Any, **options: Any) -> None:
        library.SMALLEST_FILE_BYTES = 1024
        super().__init__(*args, **options)


def train(world: World, directory: str, more: dict[str, Any]) -> Any:
    runs = {}
    for optimizer, params in PLACES:
        trainer = InFiles(world, make_task("wide"), offload(directory, optimizer, params, **more))
        runs[optimizer, params] = trainer.run(), sorted(path.name for path in Path(directory).rglob("*.swp"))
    return runs


@needs_ops
@pytest.mark.parametrize(
    ("world_size", "more"),
    [
        (1, {"engine__activation_checkpointing": "full", "train__batch__micro": 2}),
        (2, {"train__batch__micro": 1}),
    ],
)
def test_state_in_files_trains_as_in_one_process(
    ranks: "Launcher", tmp_path: Path, world_size: int, more: dict[str, Any]
) -> None:
    """Gradients lie at any address of a partition, and on one rank a buffer is not taken from under a backward."""
    for results in ranks(train, world_size, str(tmp_path), more, seconds=120):
        for (optimizer, params), (run, files) in results.items():
            assert_equal_runs(run, reference("wide"))
            if optimizer == "nvme":
                assert any(name.startswith("exp_avg_sq") for name in files)
            if params == "nvme":
                assert any("param" in name for name in files)


def go_on_from_a_copied_state(world: World, directory: str) -> None:
    """Copy one engine's state into another one of other weights, which then does the same, bit for bit."""
    for params, more in (("nvme", {}), ("none", {"train__precision__params": "bf16"})):
        changes = offload(directory, "nvme", params, **more)
        old, new = (InFiles(world, make_task("wide"), changes | {"train__seed": seed}) for seed in (0, 1))
        old.config = new.config  # the same random streams from here on
        for step in range(2):
            old.step(step)
        state = new.engine.state()
        for name, tensor in old.engine.state().items():
            local(state[name]).copy_(local(tensor))
        new.engine.after_load()
        assert new.engine.evaluate(new.micro_batches(3)) == old.engine.evaluate(old.micro_batches(3))
        assert new.step(3) == old.step(3)
        assert all(weight.equal(new.weights()[name]) for name, weight in old.weights().items())


@needs_ops
def test_a_checkpoint_holds_what_is_in_files_and_is_written_back(ranks: "Launcher", tmp_path: Path) -> None:
    ranks(go_on_from_a_copied_state, 2, str(tmp_path), seconds=120)


def hold(world: World, directory: str) -> dict[str, int]:
    trainer = InFiles(world, make_task("wide"), offload(directory, "nvme", "nvme"))
    trainer.step(0)
    return dict(trainer.engine.memory())


@needs_ops
def test_ranks_that_are_gone_leave_nothing_to_the_next(ranks: "Launcher", tmp_path: Path) -> None:
    first = ranks(hold, 2, str(tmp_path))
    left = set(tmp_path.iterdir())
    assert len(left) == 2
    second = ranks(hold, 2, str(tmp_path))
    assert first == second
    assert not left & set(tmp_path.iterdir())


def refuse(world: World, directory: str) -> str:
    ops.ops_directory = lambda device: Path(directory)
    with pytest.raises(ConfigError) as refused:
        Trainer(world, make_task("plain"), offload(directory, "nvme", "none"))
    return str(refused.value)


def test_a_node_without_ops_refuses_with_the_remedy_and_compiles_nothing(
    ranks: "Launcher", tmp_path: Path
) -> None:
    (text,) = ranks(refuse, 1, str(tmp_path))
    assert "needs DeepSpeed's ops pin_memory, async_io" in text
    assert "`shardyard-worker ops build`" in text


def compile_one(world: World, op: str) -> str:
    Trainer(world, make_task("plain"), ENGINES["deepspeed-1"])
    from deepspeed.ops.op_builder import CPUAdamBuilder  # only once the engine is there

    with pytest.raises(ConfigError) as refused:
        CPUAdamBuilder().load()
    return str(refused.value)


def test_nothing_is_compiled_inside_a_job(ranks: "Launcher") -> None:
    (text,) = ranks(compile_one, 1, "cpu_adam")
    assert "would compile its op cpu_adam inside the job" in text


def test_a_disk_that_did_not_take_all_is_refused(tmp_path: Path) -> None:
    whole, short, sparse = (tmp_path / name for name in ("whole", "short", "sparse"))
    whole.write_bytes(torch.ones(4096, dtype=torch.uint8).numpy().tobytes())
    short.write_bytes(b"1")
    with sparse.open("wb") as file:
        file.truncate(1 << 20)
    check_written({str(whole): 4096})
    for path in (short, sparse, tmp_path / "missing"):
        with pytest.raises(ConfigError, match="1 of 2 files were not written whole"):
            check_written({str(whole): 4096, str(path): 1 << 20})


def test_memory_that_cannot_be_locked_is_refused() -> None:
    check_lockable(4096)
    with pytest.raises(ConfigError, match="ulimit -l"):
        check_lockable(1 << 50)
