"""The master comparison matrix as a person reads it."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.cli.pictures.style import columns
from orchestrator.cli.wording import bytes_text, count_text, plural
from workers.contract.plan import HEADROOM, Plan, PlanRow

NUMBERS = ("PARAMS", "GRADS", "OPTIMIZER", "ACTIV.", "COMM.", "PEAK", "OF IT", "HOST", "SENT/STEP")


def plan_page(plan: Plan, *, shows_all: bool) -> RenderableType:
    """Head, matrix and what follows from it."""
    shown = plan.rows if shows_all else short_list(plan)
    hidden = len(plan.rows) - len(shown)
    foot = [Text(f"{plural(hidden, 'more row')}: --all", style="dim")] if hidden else []
    return Group(_head(plan), Text(), matrix(plan, shown), *foot, Text(), *_sentences(plan))


def short_list(plan: Plan) -> Sequence[PlanRow]:
    """Rows without recomputation and offload, the one asked for, and the one to take."""

    def is_plain(row: PlanRow) -> bool:
        return " " not in row.name

    return [row for row in plan.rows if is_plain(row) or row.is_asked or row.is_recommended]


def matrix(plan: Plan, rows: Sequence[PlanRow]) -> Table:
    """One line for each row; bytes of one rank."""
    table = columns("", "ENGINE", *NUMBERS, right=NUMBERS)
    for row in rows:
        fits = row.fits(plan.device_bytes)
        style = "red" if fits is False else "bold green" if row.is_recommended else ""
        numbers = (row.parameters, row.gradients, row.optimizer_state, row.activations, row.communication)
        table.add_row(
            _mark(row),
            Text(row.name, style=style),
            *(bytes_text(number) for number in numbers),
            Text(bytes_text(row.peak), style=style),
            _share(row, plan),
            bytes_text(row.host) + (f" + {bytes_text(row.nvme)} nvme" if row.nvme else ""),
            bytes_text(row.sent),
        )
    return table


def _mark(row: PlanRow) -> Text:
    if row.is_recommended:
        return Text("->", style="bold green")
    return Text("*" if row.is_asked else "")


def _share(row: PlanRow, plan: Plan) -> str:
    return "" if plan.device_bytes is None else f"{row.peak / plan.device_bytes:.0%}"


def _head(plan: Plan) -> Text:
    frozen = "" if plan.trained == plan.parameters else f", {count_text(plan.trained)} of them trained"
    length = f" of {count_text(plan.seq_len)}" if plan.seq_len else ""
    steps = "" if plan.accumulation == 1 else f", {plan.accumulation} micro-batches a step"
    device = ""
    if plan.device_bytes is not None:
        named = plan.device if plan.device and not plan.device[0].isdigit() else "device"
        device = f" on {plan.workers} {named} of {bytes_text(plan.device_bytes)}"
    return Text.assemble(
        (plan.name, "bold"),
        f"  {count_text(plan.parameters)} parameters{frozen}, {plan.precision}; "
        f"{plural(plan.workers, 'worker')}{device}, {plural(plan.micro, 'sequence')}{length} a forward{steps}",
    )


def _sentences(plan: Plan) -> Iterator[Text]:
    asked = next(row for row in plan.rows if row.is_asked)
    best = next((row for row in plan.rows if row.is_recommended), None)
    yield Text(
        f"*   {asked.name} is what the job file asks for" + (f"; {plan.advice}" if plan.advice else "")
    )
    if best is not None and plan.device_bytes is not None:
        yield Text(f"->  {best.name}: {plan.reason}")
    if plan.largest_micro is not None:
        yield Text(f"    the largest train.batch.micro that fits as asked: {plan.largest_micro}")
    yield Text(
        "    bytes of one rank; a row fits if its peak is at most "
        f"{HEADROOM:.0%} of the device. Activations are traced, the rest is arithmetic.",
        style="dim",
    )
