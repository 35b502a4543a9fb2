"""The training loop."""

from collections.abc import Callable

from workers.contract.events import JobResult
from workers.contract.launch import RankOrder
from workers.contract.rank_messages import RankMessage
from workers.progress import Progress
from workers.world import World


def train(
    order: RankOrder, world: World, emit: Callable[[RankMessage], None], progress: Progress | None = None
) -> JobResult:
    """Train one round to its end. Every rank calls it; who called sends the result as `Done`."""
    raise NotImplementedError
