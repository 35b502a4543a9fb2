"""The batch plan: each global index exactly once, the same number of forwards on every rank."""

from hypothesis import given
from hypothesis import strategies as st

from workers.contract.batch import plan_batch


@given(
    data=st.data(),
    global_sequences=st.integers(1, 97),
    micro=st.one_of(st.just("auto"), st.integers(1, 40)),
    step=st.integers(0, 1_000),
)
def test_every_index_of_a_step_is_trained_once_at_any_world_size(data, global_sequences, micro, step):
    world_size = data.draw(st.integers(1, global_sequences))
    plan = plan_batch(global_sequences=global_sequences, world_size=world_size, micro=micro)
    per_rank = [plan.micro_batches(step=step, rank=rank) for rank in range(world_size)]
    trained = [
        i for rank in per_rank for batch in rank for i in range(batch.first, batch.first + batch.count)
    ]
    assert trained == list(plan.step_indices(step))
    assert {len(rank) for rank in per_rank} == {plan.accumulation}
    assert max(batch.count for rank in per_rank for batch in rank) <= plan.micro


def test_steps_follow_each_other_without_a_gap():
    plan = plan_batch(global_sequences=12, world_size=5, micro=2)
    assert plan.step_indices(0).stop == plan.step_indices(1).start


def test_a_world_that_does_not_divide_the_batch_gets_zero_weight_forwards():
    plan = plan_batch(global_sequences=5, world_size=2, micro=2)
    assert [b.count for b in plan.micro_batches(step=0, rank=0)] == [2, 1]
    assert [b.count for b in plan.micro_batches(step=0, rank=1)] == [2, 0]
