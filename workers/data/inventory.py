"""What a run found when it opened its data: how many samples, and what is in none of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from workers.data.dataset import Dataset
from workers.data.mixture import Mixture
from workers.data.order import SampleOrder
from workers.data.token_dataset import TokenDataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Counts over all sources. A task's own data set tells its samples alone."""

    samples: int
    held_out: int
    dropped_tokens: int = 0  # ends of files that are shorter than a sample
    bad_rows: int = 0  # rows that could not be read, left out
    first_bad_rows: tuple[str, ...] = ()  # where and why

    def __str__(self) -> str:
        """Say it in one line; what is zero is not said."""
        bad = f"{self.bad_rows} bad row(s) left out, the first: {''.join(self.first_bad_rows[:1])}"
        said = (
            f"{self.samples} samples",
            f"{self.held_out} of them held out" if self.held_out else "",
            f"{self.dropped_tokens} tokens at ends of files left over" if self.dropped_tokens else "",
            bad if self.bad_rows else "",
        )
        return "; ".join(part for part in said if part)


def take_inventory(dataset: Dataset, samples: SampleOrder) -> Inventory:
    """Count what `dataset` holds in the order `samples`."""
    sources = _token_sources(dataset)
    return Inventory(
        samples=len(dataset),
        held_out=samples.num_validation,
        dropped_tokens=sum(source.num_dropped_tokens for source in sources),
        bad_rows=sum(source.num_bad_rows for source in sources),
        first_bad_rows=tuple(row for source in sources for row in source.bad_rows),
    )


def _token_sources(dataset: Dataset) -> Sequence[TokenDataset]:
    if isinstance(dataset, Mixture):
        return dataset.sources
    return [dataset] if isinstance(dataset, TokenDataset) else []
