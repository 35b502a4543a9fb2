"""After which steps a sample follows, and how fast a round was."""

import pytest

from workers.contract.config import TrainingConfig
from workers.contract.launch import LaunchRequest, RankOrder, RoundOrder
from workers.contract.restart import Counters
from workers.engines import StepOutput
from workers.sampling import CURVE_PARTS, Sampler

TOKENS = 100


def make_order(train: dict[str, int]) -> RankOrder:
    data = {"kind": "text", "path": "python-stdlib"}
    job = {"model": {"kind": "llama", "size": "nano"}, "data": data, "train": train}
    request = LaunchRequest(
        job_id="j",
        name="j",
        generation=0,
        world_size=1,
        gpus_per_worker=0,
        config=TrainingConfig.model_validate(job),
        run_dir="/run",
        counters=Counters(),
        version="0",
    )
    return RankOrder(
        request=request,
        round=RoundOrder(attempt=0, round=0, nonce="00000000", resume_from=None, store_address=""),
        rank=0,
        world_size=1,
        local_rank=0,
        node="here",
        device="cpu",
        network_interface="lo",
    )


class Round:
    """A round on a clock that its steps move. `sampled` are the steps that a sample followed."""

    def __init__(self, *, start: int = 0, **train: int) -> None:
        self.now = 0.0
        self.sampler = Sampler(make_order(train), start_step=start, clock=lambda: self.now)
        self.sampled: list[int] = []

    def step(self, seconds: float) -> None:
        self.sampler.begin_step()
        self.sampler.data_are_here()
        self.now += seconds
        self.sampler.end_step(StepOutput(loss=1.0, grad_norm=1.0, tokens=TOKENS, is_finite=True))
        if self.sampler.is_due:
            self.sampled.append(self.sampler.take({}, None).step)


def test_a_job_of_seconds_has_a_curve_all_the_same() -> None:
    short, longer = Round(steps=20), Round(steps=320)
    for _ in range(20):
        short.step(0.001)
    for _ in range(320):
        longer.step(0.001)
    assert short.sampled == list(range(1, 21))
    assert longer.sampled == [1, *range(10, 321, 10)]
    assert len(longer.sampled) == CURVE_PARTS + 1


def test_a_resumed_round_samples_the_steps_that_the_first_one_would_have() -> None:
    again = Round(steps=320, start=205)
    for _ in range(115):
        again.step(0.001)
    assert again.sampled == [206, *range(210, 321, 10)]


def test_a_long_job_has_a_sample_a_second_and_only_where_it_asked_for_one() -> None:
    every, tenth = Round(steps=1_000_000), Round(steps=1_000_000, log_every_steps=10)
    for _ in range(30):
        every.step(0.25)
        tenth.step(0.25)
    assert every.sampled == [1, 5, 9, 13, 17, 21, 25, 29]
    assert tenth.sampled == [1, 10, 20, 30]


def test_how_fast_a_round_was_leaves_its_first_step_out_and_counts_what_lies_between_steps() -> None:
    trained = Round(steps=10)
    trained.step(30.0)
    assert trained.sampler.tokens_per_second is None
    trained.step(1.0)
    trained.now += 2.0  # a save
    trained.step(1.0)
    assert trained.sampler.tokens_per_second == pytest.approx(2 * TOKENS / 4.0)
