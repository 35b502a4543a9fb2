"""What a job will need: the paper's table, traffic, traced activations, and which row is recommended."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from workers.contract.config import Engine, Optimizer, TrainingConfig
from workers.contract.plan import HEADROOM, Plan, device_bytes
from workers.models import load_task
from workers.planner.activations import Activations, LiveBytes, trace
from workers.planner.matrix import largest_micro
from workers.planner.partition import paper_bytes, static
from workers.planner.plan import make_plan
from workers.planner.shape import ModelShape, read_shape
from workers.planner.traffic import traffic

GB = 1e9


def job(size: str = "nano", *, seq_len: int = 64, **changes: Any) -> TrainingConfig:
    return TrainingConfig.model_validate(
        {
            "model": {"kind": "llama", "size": size},
            "data": {"kind": "text", "path": "python-stdlib", "seq_len": seq_len},
            "scaling": {"num_workers": 4},
        }
        | changes
    )


def shape_of(size: str) -> ModelShape:
    task = load_task(job(size))
    module = task.build()
    return read_shape(module, task.blocks(module))


@pytest.mark.parametrize(("stage", "expected"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_the_papers_table_comes_out(stage: int, expected: float) -> None:
    """7.5 billion parameters on 64 devices: figure 1 of the ZeRO paper."""
    assert paper_bytes(7.5e9, stage=stage, world_size=64) / GB == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_stage_3_sends_half_as_much_again_as_stage_1_and_each_micro_batch_costs(accumulation: int) -> None:
    shape = shape_of("nano")

    def sent(kind: str, stage: int) -> float:
        engine = Engine.model_validate({"kind": kind, "zero_stage": stage})
        found = traffic(
            shape, engine, compute_bytes=2, reduce_bytes=2, accumulation=accumulation, world_size=8
        )
        return found.total / (shape.num_parameters * 2 * 7 / 8)

    assert sent("deepspeed", 1) == pytest.approx(2.0)
    assert sent("fsdp", 2) == pytest.approx(accumulation + 1)
    assert sent("fsdp", 3) == pytest.approx(3 * accumulation)
    assert sent("ddp", 0) == pytest.approx(2.0)


def test_shares_of_all_ranks_add_up_to_the_whole() -> None:
    shape = shape_of("nano")
    engine = Engine.model_validate({"kind": "fsdp", "zero_stage": 3})
    shares = [
        static(shape, engine, Optimizer(), compute_bytes=2, world_size=7, rank=rank) for rank in range(7)
    ]
    steps = 4 * len(shape.weights)
    assert sum(share.optimizer_state - steps for share in shares) == shape.num_parameters * 8
    assert len({share.parameters for share in shares}) == 1, "parameters are padded"


def test_a_world_of_a_thousand_holds_next_to_nothing_each() -> None:
    shape = shape_of("8b")
    engine = Engine.model_validate({"kind": "fsdp", "zero_stage": 3})
    held = static(shape, engine, Optimizer(), compute_bytes=2, world_size=1024)
    assert held.device < 1.01 * shape.num_parameters * 16 / 1024 + shape.buffer_bytes


def traced(micro: int, kept: str = "none", *, seq_len: int = 64) -> Activations:
    config = job(seq_len=seq_len, engine={"kind": "fsdp", "activation_checkpointing": kept})
    tokens = torch.zeros(micro, seq_len, dtype=torch.long)
    batch = {"tokens": tokens, "labels": tokens}
    return trace(load_task(config), batch, config.engine, compute=torch.bfloat16)


def test_activations_grow_with_the_micro_batch_by_the_same_bytes_each_time() -> None:
    one, two, four = (traced(micro).kept for micro in (1, 2, 4))
    assert four - two == pytest.approx(2 * (two - one), rel=0.01)
    assert two > 1.9 * one


def test_recomputation_keeps_less_and_full_keeps_least() -> None:
    none, selective, full = (traced(2, kept) for kept in ("none", "selective", "full"))
    assert none.kept > selective.kept > full.kept > 0
    assert none.peak > full.peak > full.kept, "a block runs again, and holds what it makes"


def test_live_bytes_are_those_of_storages_that_live_each_once() -> None:
    weight = torch.zeros(8)
    with LiveBytes([weight]) as live:
        a = torch.ones(16) + 0.0
        b = a.view(4, 4).t()
        weight.add_(1.0)
        assert live.current == 64
        del a, b
        assert live.current == 0
        c = torch.ones(4).double()
    assert live.peak == 128
    assert c.numel() == 4


def test_a_plan_marks_what_was_asked_for_and_what_to_take_and_why() -> None:
    config = job("20m", seq_len=256, engine={"kind": "ddp"})
    free = make_plan(config, name="n", workers=4, device="80GiB", device_bytes=80 << 30)
    asked, best = marked(free)
    assert asked == "ddp"
    assert " " not in best, "nothing is offloaded or recomputed"
    assert free.advice == ""
    peak = next(row.peak for row in free.rows if row.is_asked)
    tight = make_plan(config, name="n", workers=4, device="small", device_bytes=int(peak * 0.8))
    asked, best = marked(tight)
    assert asked == "ddp"
    chosen = next(row for row in tight.rows if row.is_recommended)
    assert chosen.peak <= int(peak * 0.8) * HEADROOM
    assert "cheapest change" in tight.advice
    nothing = make_plan(config, name="n", workers=4, device="tiny", device_bytes=1 << 20)
    assert "no row fits" in nothing.advice
    assert not any(row.is_recommended for row in nothing.rows)


def marked(plan: Plan) -> tuple[str, str]:
    [asked] = [row.name for row in plan.rows if row.is_asked]
    [best] = [row.name for row in plan.rows if row.is_recommended]
    return asked, best


def test_rows_are_all_that_a_job_file_may_ask_for_once_each() -> None:
    names = [row.name for row in make_plan(job(), name="n", workers=4).rows]
    assert len(names) == len(set(names)) > 40
    assert {"ddp", "fsdp-2", "fsdp-3", "deepspeed-1", "deepspeed-2", "deepspeed-3"} <= set(names)
    assert "fsdp-1" not in names
    assert "deepspeed-0" not in names, "in bf16 it is refused"


@pytest.mark.parametrize("room", [1, 5, 7, 12, 400])
def test_the_largest_micro_batch_is_the_last_that_fits(room: int) -> None:
    found = largest_micro(lambda micro: 4 + 3 * micro, room, limit=64)
    fitting = [micro for micro in range(1, 65) if 4 + 3 * micro <= room]
    assert found == (max(fitting) if fitting else None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h200", 141_000_000_000),
        ("A100", 80 << 30),
        ("80GiB", 80 << 30),
        ("24 GB", 24 * 10**9),
        ("0.5GiB", 1 << 29),
    ],
)
def test_a_device_is_named_or_sized(text: str, expected: int) -> None:
    assert device_bytes(text) == expected


def test_an_unknown_device_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match="h200"):
        device_bytes("h300")


def test_frozen_weights_have_neither_gradient_nor_moments() -> None:
    shape = shape_of("nano")
    frozen = replace(shape, weights=[replace(weight, is_trained=False) for weight in shape.weights])
    held = static(frozen, Engine.model_validate({"kind": "ddp"}), Optimizer(), compute_bytes=4, world_size=1)
    assert (held.gradients, held.optimizer_state) == (0, 0)
    assert held.parameters == shape.num_parameters * 4
