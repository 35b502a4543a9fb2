"""Samples come twice, late and from abandoned lineages; counters never count one twice."""

from orchestrator.job_queries import LossPoint
from orchestrator.measure import accept, of_newest_round


def test_a_report_that_comes_twice_adds_nothing_the_second_time(make) -> None:
    told = [make.sample(1), make.sample(2), make.sample(2, rank=1)]
    once = accept({}, told, generation=1)
    assert (once.tokens, [p.step for p in once.points]) == (200, [1, 2])
    known = {sample.rank: (1, sample) for sample in once.newest}
    again = accept(known, told, generation=1)
    assert (again.newest, again.points, again.tokens) == ((), (), 0)


def test_steps_whose_samples_were_not_sent_count_at_the_newest_rate(make) -> None:
    known = {0: (1, make.sample(10))}
    assert accept(known, [make.sample(20, steps=2)], generation=1).tokens == 1000


def test_a_new_round_takes_back_the_curve_to_where_it_resumed_but_no_tokens(make) -> None:
    known = {0: (1, make.sample(30))}
    resumed = accept(known, [make.sample(21, round_=1), make.sample(22, round_=1)], generation=1)
    assert resumed.rewind_to == 20
    assert [p.step for p in resumed.points] == [21, 22]
    assert resumed.tokens == 200


def test_within_one_report_the_abandoned_steps_are_left_out(make) -> None:
    told = [make.sample(1), make.sample(2, loss=9.0), make.sample(2, round_=1, loss=3.0)]
    accepted = accept({}, told, generation=1)
    assert accepted.points == (LossPoint(step=1, loss=2.0), LossPoint(step=2, loss=3.0))


def test_an_older_generation_never_overwrites_a_newer_one(make) -> None:
    known = {0: (2, make.sample(1))}
    assert accept(known, [make.sample(99)], generation=1).newest == ()


def test_only_the_ranks_of_the_newest_round_live(make) -> None:  # B104
    stored = [(1, make.sample(5, rank=rank)) for rank in range(4)]
    stored[:2] = [(1, make.sample(4, rank=rank, round_=1)) for rank in range(2)]
    assert [sample.rank for sample in of_newest_round(stored)] == [0, 1]
    assert of_newest_round([]) == ()
