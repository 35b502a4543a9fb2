"""A generation played by hand: inputs in, effects out, no process anywhere."""

from datetime import UTC, datetime

import pytest

from workers.agent.messages import Ended, Registered, Said, Started
from workers.contract.config import TrainingConfig
from workers.contract.events import JobResult, Sample
from workers.contract.failure import RankEnding
from workers.contract.launch import LaunchRequest
from workers.contract.rank_messages import Done, Measured, Ready
from workers.contract.restart import Counters
from workers.driver.effects import AgentSaid, Choose, Chosen, Input, Post, Say, StartAttempt, Tick
from workers.driver.rounds import advance, begin


def make_request(**fields) -> LaunchRequest:
    config = TrainingConfig.model_validate(
        {
            "model": {"kind": "llama", "size": "nano"},
            "data": {"kind": "text", "path": "python-stdlib"},
            "scaling": {"num_workers": fields.get("world_size", 2)},
            "failure": {"max_failures": fields.pop("max_failures", 5)},
        }
    )
    values = {
        "job_id": "j1",
        "name": "j",
        "generation": 0,
        "world_size": 2,
        "gpus_per_worker": 0,
        "config": config,
        "run_dir": "/run",
        "counters": Counters(),
        "version": "0",
    }
    return LaunchRequest(**{**values, **fields})


class Play:
    """Feeds the state machine, answers `Choose` from `checkpoint`, and keeps what was said and asked."""

    def __init__(self, request: LaunchRequest) -> None:
        self.now = 100.0
        self.checkpoint: tuple[str | None, int] = (None, 0)
        self.effects: list = []
        self.state, effects = begin(request, self.now)
        self._take(effects)

    def give(self, given: Input) -> None:
        self.state, effects = advance(self.state, given, self.now)
        self._take(effects)

    def _take(self, effects) -> None:
        for effect in effects:
            self.effects.append(effect)
            if isinstance(effect, Choose):
                name, step = self.checkpoint
                self.give(Chosen(resume_from=name, step=step, nonce=f"{len(self.effects):08x}"))

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.give(Tick())

    def agent(self, message) -> None:
        self.give(AgentSaid(attempt=self.state.attempt, message=message))

    def register(self) -> None:
        for rank in range(self.state.request.world_size):
            address = "10.0.0.1:2000" if rank == 0 else None
            self.agent(
                Registered(
                    rank=rank, node=f"n{rank}", node_id=f"id{rank}", pid=10 + rank, store_address=address
                )
            )

    def start(self) -> None:
        """Everything up to the first step of the first round."""
        self.after(0)
        self.register()
        self.step(1)

    def step(self, finished: int) -> None:
        """Every rank of the round in work is up and has finished so many steps."""
        round_ = self.round
        for rank in range(self.state.request.world_size):
            if rank not in self.state.round.pids:
                self.agent(Started(rank=rank, round=round_, pid=1000 + 10 * round_ + rank))
                self.agent(
                    Said(rank=rank, round=round_, message=Ready(step=0, resumed_from=None, seconds={}))
                )
        self.agent(Said(rank=0, round=round_, message=Measured(sample=sample(finished, round_))))

    def end(self, rank: int, **fields) -> None:
        fields.setdefault("at", 1.0)
        ending = RankEnding(rank=rank, node=f"n{rank}", **fields)
        self.agent(Ended(rank=rank, round=self.round, ending=ending))

    def done(self, final_step: int) -> None:
        result = JobResult(
            final_step=final_step,
            loss_first=3.0,
            loss_last=1.0,
            tokens=1,
            samples_repeated=0,
            samples_missing=0,
            replayed_steps=0,
            checkpoint="c",
        )
        for rank in range(self.state.request.world_size):
            self.agent(Said(rank=rank, round=self.round, message=Done(result=result)))

    @property
    def round(self) -> int:
        return self.state.round.order.round

    @property
    def orders(self) -> list:
        return [effect.order for effect in self.effects if isinstance(effect, Post)]

    @property
    def attempts(self) -> list[int]:
        return [effect.attempt for effect in self.effects if isinstance(effect, StartAttempt)]

    def said(self, kind) -> list[Say]:
        return [effect for effect in self.effects if isinstance(effect, Say) and effect.kind == kind]


def sample(step: int, round_: int = 0, rank: int = 0) -> Sample:
    return Sample(
        rank=rank,
        step=step,
        attempt=0,
        round=round_,
        at=datetime(2026, 1, 1, tzinfo=UTC),
        loss=2.0,
        learning_rate=0.1,
        grad_norm=1.0,
        tokens=8,
        steps=1,
        step_seconds=0.1,
    )


@pytest.fixture
def play():
    """Make a played generation: `play(world_size=3, max_failures=0)`."""
    return lambda **fields: Play(make_request(**fields))


@pytest.fixture
def make_sample():
    return sample
