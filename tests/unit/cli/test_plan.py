"""`shardyard plan`: the matrix as a person and as a program read it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli.app import build_app
from orchestrator.cli.pictures.plan import plan_page
from workers.contract.plan import Plan, PlanRow

JOB = """
name: planned
model: {kind: llama, size: nano}
data: {kind: text, path: python-stdlib, seq_len: 64}
engine: {kind: fsdp, zero_stage: 3}
scaling: {num_workers: 2}
"""


Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    return lambda *arguments: CliRunner().invoke(build_app(), list(arguments))


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return str(path)


def test_a_program_gets_every_row_with_peak_and_fit(run: Run, file: str) -> None:
    result = run("plan", file, "--gpu", "1GiB", "--workers", "4", "--json")
    assert result.exit_code == 0, result.stderr
    plan = json.loads(result.stdout)
    assert (plan["name"], plan["workers"], plan["device_bytes"]) == ("planned", 4, 1 << 30)
    asked = [row for row in plan["rows"] if row["is_asked"]]
    assert [row["name"] for row in asked] == ["fsdp-3"]
    parts = ("parameters", "gradients", "optimizer_state", "buffers", "activations", "communication")
    assert asked[0]["peak"] == sum(asked[0][part] for part in parts)
    assert asked[0]["fits"] is True
    assert plan["sources"]["activations"] == "trace"


def test_an_unknown_device_is_bad_input_with_those_that_are_known(run: Run, file: str) -> None:
    result = run("plan", file, "--gpu", "h300")
    assert result.exit_code == 2
    assert "h200" in result.stderr


def row(name: str, gigabytes: int, **changes: object) -> PlanRow:
    zeros = dict.fromkeys(
        (
            "gradients", "optimizer_state", "buffers", "activations", "communication", "host", "nvme",
            "all_gather", "reduce_scatter", "all_reduce",
        ),
        0,
    )  # fmt: skip
    return PlanRow(name=name, engine={}, parameters=gigabytes << 30, **zeros, **changes)


def test_a_person_sees_what_was_asked_what_to_take_and_what_is_left_out(draw: Callable[..., str]) -> None:
    plan = Plan(
        name="big",
        parameters=7_500_000_000,
        trained=7_500_000_000,
        workers=8,
        micro=1,
        accumulation=4,
        seq_len=2048,
        precision="bf16",
        device="h100",
        device_bytes=80 << 30,
        rows=(
            row("ddp", 120, is_asked=True),
            row("fsdp-3", 40, is_recommended=True),
            row("fsdp-3 recompute:full", 20),
        ),
        reason="it sends least",
        advice="it does not fit; the cheapest change that does: fsdp-3",
    )
    page = draw(plan_page(plan, shows_all=False), width=140)
    assert "7,500,000,000 parameters" in page
    assert "150%" in page
    assert "1 more row: --all" in page
    assert "*   ddp is what the job file asks for; it does not fit" in page
    assert "->  fsdp-3: it sends least" in page
    assert "recompute:full" in draw(plan_page(plan, shows_all=True), width=140)
