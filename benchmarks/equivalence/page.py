"""`docs/equivalence.md`, made of the rows alone. Pure."""

from collections.abc import Iterable, Sequence

from benchmarks.equivalence.matrix import TRAININGS, WORLD_SIZES, variants
from benchmarks.equivalence.rows import Results, Row

HEAD = """# One training, whatever runs it

Made by `make equivalence`; do not edit. Every row: [results/equivalence.json](../results/equivalence.json).

An engine, its ZeRO stage and what it offloads decide where bytes lie, never what is trained. So the same training -
same seed, same data - is run under each of them at 1, 2, 3 and 4 workers, and compared with one process that uses plain
PyTorch and none of the engines' code ([benchmarks/equivalence](../benchmarks/equivalence)). Each figure is the largest
difference found:

- **loss**: relative, at each of {steps} steps, on each rank;
- **weights**: after the last step, L2 of the difference / L2, for each parameter.

The gradient norm of each step is compared, too; it is in the JSON. AdamW with eps 1e-6, since with 1e-8 a gradient that
is zero but for rounding moves a weight as much as any other.

**{num_equal} of {num_rows} rows are equal** within the tolerances below. {num_failed}
"""
NO_FAILURE = "None is left out."
FAILURES = "The others are listed at the end."

BF16 = """## In bf16

The training is *{name}*. Rows are compared with `ddp` at the same number of workers, and `ddp` itself with the one
process, whose forward reads bf16 copies of fp32 weights. Rounding to 8 bits depends on the order of sums, so this
tolerance is not derived but measured, about twice what was found: loss {loss:.0e}, weights {weights:.0e}, norm {norm:.0e}.
What DeepSpeed differs by at one worker has one cause: `ddp` and `fsdp` read a parameter of 0 dims in fp32, DeepSpeed
rounds it to bf16 as any other. `deepspeed-0` is refused in bf16, since DeepSpeed 0.19.8 trains wrongly there.
"""


def render(results: Results) -> str:
    """Return the page."""
    rows = results.rows
    bad = [row for row in rows if not row.is_equal]
    exact = [row for row in rows if row.precision == "fp32"]
    rough = [row for row in rows if row.precision == "bf16"]
    fp32 = results.tolerances["fp32"]
    parts = [
        HEAD.format(
            steps=results.steps,
            num_equal=len(rows) - len(bad),
            num_rows=len(rows),
            num_failed=FAILURES if bad else NO_FAILURE,
        ),
        f"## In fp32: {fp32['loss']:.0e}\n\n"
        "Loss / weights, the largest of all trainings in fp32. `optimizer:` and `params:` say where they are offloaded to;\n"
        "hybrid and hpZ shard in groups of 2, so they need 4 workers.\n",
        _by_engine(exact),
        "## What was trained\n\nA decoder of three blocks on tokens; loss / weights are the largest under any engine.\n",
        _by_training(rows),
        BF16.format(
            name=", ".join(t.name for t in TRAININGS if t.precision == "bf16"),
            **results.tolerances["bf16"],
        ),
        _by_engine(rough),
        *([_failures(bad)] if bad else []),
        _made_by(results),
    ]
    return "\n".join(parts)


def _by_engine(rows: Sequence[Row]) -> str:
    lines = [_line("engine", *(f"{n} worker{'s' if n > 1 else ''}" for n in WORLD_SIZES))]
    lines.append(_line("---", *("---" for _ in WORLD_SIZES)))
    for variant in variants():
        of_engine = [row for row in rows if row.engine == variant.name]
        if of_engine:
            cells = ([row for row in of_engine if row.world_size == n] for n in WORLD_SIZES)
            lines.append(_line(f"`{variant.name}`", *(_worst(cell) for cell in cells)))
    return "\n".join(lines) + "\n"


def _by_training(rows: Sequence[Row]) -> str:
    lines = [_line("training", "what it adds", "rows", "loss / weights"), _line(*("---",) * 4)]
    for training in TRAININGS:
        of_training = [row for row in rows if row.training == training.name]
        lines.append(_line(training.name, training.shows, str(len(of_training)), _worst(of_training)))
    return "\n".join(lines) + "\n"


def _worst(rows: Sequence[Row]) -> str:
    """Return the largest differences; bold where a row is not equal, so that no average hides it."""
    if not rows:
        return "-"
    bad = [row for row in rows if not row.is_equal]
    if any(row.error for row in rows):
        return f"**{len(bad)} of {len(rows)} failed**"
    text = f"{_largest(row.loss for row in rows)} / {_largest(row.weights for row in rows)}"
    return f"**{text}**" if bad else text


def _largest(values: Iterable[float | None]) -> str:
    return f"{max(value for value in values if value is not None):.0e}"


def _failures(rows: Sequence[Row]) -> str:
    lines = ["## Not equal\n"]
    for row in rows:
        why = (
            row.error
            or f"loss {row.loss:.1e}, norm {row.norm:.1e}, weights {row.weights:.1e} ({row.parameter})"
        )
        lines.append(f"- `{row.engine}`, {row.world_size} workers, {row.training}: {' '.join(why.split())}")
    return "\n".join(lines) + "\n"


def _made_by(results: Results) -> str:
    software = ", ".join(f"{name} {version}" for name, version in results.software.items())
    machine = ", ".join(f"{value} {name}" for name, value in results.machine.items())
    return (
        f"## How to make it again\n\n`{results.command}` at commit `{results.commit}`, seed {results.seed}: "
        f"{results.seconds / 60:.0f} minutes on {machine}; {software}.\n"
    )


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
