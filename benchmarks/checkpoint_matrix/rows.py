"""What is measured of each engine at each width, and the section of the results file that it is kept in. Pure but for files."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

TOLERANCE: Final = 1e-5  # of losses, relative, against the uninterrupted reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One engine at one width."""

    engine: str
    world_size: int
    layout: str = ""  # which of the distinct ones it writes
    is_same_content: bool = False  # what it saved of the reference is the reference's, bit for bit
    num_loaded: int = 0  # distinct layouts that it loaded bit for bit
    num_layouts: int = 0
    loss: float | None = None  # largest relative difference of a loss after the reference's checkpoint
    is_bitwise: bool = False  # interrupted and not, by itself: the same losses to the bit
    error: str | None = None

    @property
    def is_right(self) -> bool:
        """All that is promised of a row."""
        return (
            self.error is None
            and self.is_same_content
            and self.num_loaded == self.num_layouts > 0
            and self.loss is not None
            and self.loss <= TOLERANCE
            and self.is_bitwise
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All rows of a run, and what one needs to make them again."""

    command: str
    commit: str  # with "+" if the tree had changes
    seed: int
    seconds: float
    machine: Mapping[str, Any]
    software: Mapping[str, str]
    rows: Sequence[Row]


def write_section(path: Path, name: str, section: Mapping[str, Any]) -> None:
    """Replace one section of a results file; the others are another program's, and stay."""
    tree = json.loads(path.read_text()) if path.exists() else {}
    tree[name] = dict(section)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(tree, indent=1, sort_keys=True) + "\n")


def write_results(results: Results, path: Path) -> None:
    """Write the section `matrix`."""
    rows = [{key: value for key, value in asdict(row).items() if value is not None} for row in results.rows]
    write_section(path, "matrix", asdict(results) | {"rows": rows})


def read_results(path: Path) -> Results:
    """Read what `write_results` wrote."""
    tree = json.loads(path.read_text())["matrix"]
    return Results(**(tree | {"rows": [Row(**row) for row in tree["rows"]]}))


def difference(found: Sequence[float], expected: Sequence[float]) -> float:
    """Return the largest relative difference."""
    return max(abs(one - other) / abs(other) for one, other in zip(found, expected, strict=True))
