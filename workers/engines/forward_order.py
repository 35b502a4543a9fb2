"""Holds ranks that shard to one order of units: a rank that runs another layer than the others is named, not waited for.

Where parameters are gathered, by FSDP or ZeRO stage 3, a unit's forward is a collective. If one rank calls layer A where another calls layer B, their gathers meet:
ranks hang, or mix shards of two layers without an error. Control flow that changes from step to step is fine as long as
it changes on all ranks.
"""

import itertools
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Final

import torch
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore

from workers.errors import ConfigError
from workers.world import World

ORDER_SECONDS: Final = 30.0  # how long a rank that leaves the order waits for the others to leave it too
_ENGINES: Final = (
    itertools.count()
)  # of this round, the same on all ranks: none reads what another one's asked
_END: Final = "the end of forward"
_REMEDY: Final = (
    "where layers are gathered every rank has to run the same ones in the same order; "
    "use `kind: ddp`, which does not ask for it"
)


class ForwardOrder:
    """Compares what units this rank runs with the forward before, which was the same on all ranks.

    While it follows that, it asks nobody: the first rank that leaves the order is enough to notice, and it asks the
    others through the store before it gathers anything. They agree if all leave it for the same unit.
    """

    def __init__(self, root: nn.Module, units: Mapping[str, nn.Module], world: World) -> None:
        """Hook on `root` and on `units` by name, in the order expected first. After FSDP did: it must be asked first."""
        self._world = world
        self._store = PrefixStore(f"forward-order-{next(_ENGINES)}", world.store)
        self._expected: Sequence[str] = tuple(units)
        self._run: list[str] = []
        self._questions = 0
        root.register_forward_pre_hook(self._begin, prepend=True)
        for name, unit in units.items():
            unit.register_forward_pre_hook(partial(self._enter, name), prepend=True)
        root.register_forward_hook(self._end)

    def _begin(self, _module: nn.Module, _args: object) -> None:
        self._run = []

    def _enter(self, name: str, _module: nn.Module, _args: object) -> None:
        if torch._C._current_graph_task_id() != -1:
            return  # recomputed in backward: what ran before runs again
        position = len(self._run)
        self._run.append(name)
        if position >= len(self._expected) or self._expected[position] != name:
            self._ask(name)

    def _end(self, _module: nn.Module, _args: object, _output: object) -> None:
        if len(self._run) < len(self._expected):
            self._ask(_END)
        self._expected = tuple(self._run)

    def _ask(self, here: str) -> None:
        """Return if all ranks come to `here` instead of what was expected. Raises ConfigError otherwise."""
        self._questions += 1
        position = len(self._run) - (here != _END)
        keys = [f"{self._questions}/{rank}" for rank in range(self._world.world_size)]
        self._store.set(keys[self._world.rank], here)
        try:
            self._store.wait(keys, timedelta(seconds=ORDER_SECONDS))
        except RuntimeError as error:  # DistStoreError where the time is over
            others = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
            expected = self._expected[position] if position < len(self._expected) else _END
            raise ConfigError(
                f"rank {self._world.rank} came to {here} where ranks {others} ran {expected} "
                f"(layer {position + 1} of forward); {_REMEDY}"
            ) from error
        places = [self._store.get(key).decode() for key in keys]
        if len(set(places)) > 1:
            found = ", ".join(f"rank {rank} {place}" for rank, place in enumerate(places))
            raise ConfigError(f"ranks ran different layers ({found}); {_REMEDY}")
        self._store.delete_key(f"{self._questions - 1}/{self._world.rank}")  # all have read it: they are here
