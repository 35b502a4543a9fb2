"""The life of a generation: what is rebuilt after each kind of loss, what it costs, and how it ends."""

import pytest

from workers.agent.messages import Registered, Said, StoreMoved
from workers.contract.events import EventKind
from workers.contract.failure import FailureClass
from workers.contract.rank_messages import Measured, Told
from workers.driver.effects import AgentSaid, AttemptEnded, Condemn, Forward, Heard, NotChosen, StopAsked
from workers.driver.state import Stage


def test_agents_are_ordered_only_when_all_of_them_have_registered(play):
    game = play()
    game.after(0)
    game.agent(Registered(rank=0, node="n0", node_id="id0", pid=1, store_address="10.0.0.1:2000"))
    assert game.orders == []
    game.agent(Registered(rank=1, node="n1", node_id="id1", pid=2))
    assert [(o.action, o.round, o.store_address) for o in game.orders] == [("run", 0, "10.0.0.1:2000")]


def test_an_earlier_generations_lease_is_waited_for(play):
    game = play(wait_seconds=10.0)
    game.after(9.9)
    assert game.attempts == []
    game.after(0.2)
    assert game.attempts == [0]


def test_a_killed_rank_costs_a_round_and_no_worker_group(play):
    game = play()
    game.start()
    game.step(37)
    game.checkpoint = ("step-20", 20)
    game.now += 1
    game.end(1, exit_code=-9)
    assert [(o.action, o.round, o.resume_from) for o in game.orders] == [
        ("run", 0, None),
        ("run", 1, "step-20"),
    ]
    assert game.attempts == [0]
    assert game.state.phase == "recovering"
    game.now += 0.4
    game.step(21)
    assert game.state.phase == "running"
    first_steps = game.said(EventKind.FIRST_STEP)
    assert first_steps[-1].data["seconds_since_fault"] == pytest.approx(0.4)
    assert (game.state.replayed, game.state.counters.charged) == (17, 1)


def test_steps_that_only_a_dying_rank_told_count_as_replayed(play):
    game = play()
    game.start()
    game.checkpoint = ("step-20", 20)
    game.end(0, exit_code=-9, step=31)  # in work: 30 are finished
    assert game.state.replayed == 10


def test_replayed_steps_add_up_over_rounds(play):
    game = play()
    game.start()
    for reached in (30, 25):
        game.step(reached)
        game.checkpoint = ("step-20", 20)
        game.end(1, exit_code=-9)
        game.after(60)
    assert game.state.replayed == 10 + 5


def test_a_user_error_ends_the_job_and_names_the_first_rank(play):
    game = play(world_size=3)
    game.start()
    lost_peer = {"exit_code": 1, "error_type": "RuntimeError", "message": "Connection closed by peer"}
    game.end(0, **lost_peer)
    game.end(1, **lost_peer)
    game.now += 1
    game.end(2, exit_code=1, error_type="ValueError", message="marker-123", traceback="T: marker-123", at=2.0)
    assert game.orders[-1].action == "stop"
    assert game.state.phase == "running", "nothing recovers"
    game.give(AttemptEnded(attempt=0, error=""))
    outcome = game.state.outcome
    assert (outcome.phase, outcome.verdict.first_rank) == ("failed", 2)
    assert outcome.verdict.failure_class is FailureClass.USER_CODE
    assert "marker-123" in outcome.verdict.traceback
    assert game.state.counters.charged == 0


def test_five_kills_with_progress_are_five_restarts(play):
    game = play(max_failures=5)
    game.start()
    for reached in (10, 20, 30, 40, 50):
        game.step(reached)
        game.end(1, exit_code=-9)
        game.after(60)
    assert game.state.stage is Stage.TRAINING
    assert game.state.counters.charged == 5
    game.step(60)
    game.end(1, exit_code=-9)
    assert game.state.after_close.phase == "failed"


def test_a_segfault_without_progress_backs_off_and_then_ends(play):
    game = play(max_failures=100)
    game.start()
    game.step(5)
    delays = []
    for _ in range(10):
        game.end(1, exit_code=-11)
        if game.state.stage is Stage.CLOSING:
            break
        if game.state.stage is Stage.HOLDING:
            assert game.orders[-1].action == "hold"
            delays.append(game.state.until - game.now)
            game.after(60)
        game.step(5)
    assert game.state.after_close.phase == "failed"
    assert "no progress since step 5" in game.state.after_close.reason
    assert delays == sorted(delays)
    assert delays[0] > 0


def test_a_damaged_checkpoint_is_condemned_and_not_charged(play):
    game = play()
    game.checkpoint = ("step-20", 20)
    game.start()
    game.checkpoint = ("step-10", 10)
    game.end(
        0,
        exit_code=1,
        failure_class=FailureClass.CHECKPOINT_DAMAGED,
        error_type="DamagedCheckpointError",
        message="step-20 is damaged",
        culprit="step-20",
    )
    game.after(0.5)
    assert Condemn(checkpoint="step-20") in game.effects
    assert game.orders[-1].resume_from == "step-10"
    assert game.state.counters.charged == 0


def test_a_lost_agent_costs_an_attempt(play):
    game = play()
    game.start()
    game.end(0, exit_code=1, error_type="RuntimeError", message="Connection closed by peer")
    game.give(AttemptEnded(attempt=0, error="worker died", rank=1))
    game.after(0)
    assert game.attempts == [0, 1]
    failed = game.said(EventKind.ATTEMPT_FAILED)
    assert failed[0].rank == 1
    game.register()
    assert (game.orders[-1].attempt, game.orders[-1].round) == (1, 0)


def test_what_may_still_run_on_a_lost_node_is_waited_for(play):
    game = play(lease_seconds=15.0)
    game.start()
    game.give(AttemptEnded(attempt=0, error="node died", rank=1, nodes_alive=False))
    game.after(14)
    assert game.attempts == [0]
    game.after(2)
    assert game.attempts == [0, 1]


def test_an_agent_that_is_not_heard_for_a_lease_is_lost(play):
    game = play(lease_seconds=15.0)
    game.start()
    game.give(Heard(attempt=0, silent_seconds={0: 0.1, 1: 14.0}))
    assert game.state.stage is Stage.TRAINING
    game.give(Heard(attempt=0, silent_seconds={0: 0.1, 1: 15.5}))
    assert game.state.stage is Stage.CLOSING
    assert "rank 1" in game.said(EventKind.ATTEMPT_FAILED)[0].message


def test_an_agent_of_another_version_is_refused_by_name(play):
    game = play()
    game.after(0)
    game.agent(Registered(rank=1, node="n1", node_id="id1", pid=1, problem="runs shardyard 0.2, not 0.1"))
    outcome = game.state.outcome or game.state.after_close
    assert outcome.phase == "failed"
    assert "n1: runs shardyard 0.2, not 0.1" in outcome.verdict.summary


def test_a_checkpoint_that_was_asked_for_and_is_not_there_is_refused(play):
    game = play()
    game.start()
    game.end(1, exit_code=-9)
    game.give(NotChosen(reason="no checkpoint step-7"))
    assert game.state.after_close.phase == "failed"


def test_success_needs_every_rank(play, make_sample):
    game = play()
    game.start()
    game.done(200)
    assert game.orders[-1].action == "stop"
    game.give(AttemptEnded(attempt=0, error=""))
    assert game.state.outcome.phase == "finished"
    assert game.state.outcome.result.final_step == 200


STOPPABLE = (Stage.WAITING, Stage.PLACING, Stage.TRAINING, Stage.HOLDING, Stage.CLOSING)


@pytest.mark.parametrize("stage", STOPPABLE)
def test_stop_is_obeyed_in_every_stage(play, stage):
    game = play(wait_seconds=5.0)
    if stage in (Stage.PLACING, Stage.TRAINING, Stage.HOLDING, Stage.CLOSING):
        game.after(6)
    if stage in (Stage.TRAINING, Stage.HOLDING, Stage.CLOSING):
        game.register()
        game.step(3)
    if stage is Stage.HOLDING:
        game.end(1, exit_code=-9)
        game.step(3)
        game.end(1, exit_code=-9)
    if stage is Stage.CLOSING:
        game.give(Heard(attempt=0, silent_seconds={1: 99.0}))
    assert game.state.stage is stage
    game.give(StopAsked(reason="asked"))
    if game.state.stage is Stage.CLOSING:
        game.give(AttemptEnded(attempt=0, error=""))
    assert game.state.outcome.phase == "stopped"
    assert game.orders == [] or game.orders[-1].action == "stop"


def test_a_worker_group_that_does_not_end_is_left_to_the_drivers_own_end(play):
    game = play()
    game.start()
    game.give(StopAsked(reason="asked"))
    game.after(60)
    assert game.state.outcome.phase == "stopped"


def test_a_lost_grant_ends_without_a_final_word(play):
    game = play()
    game.start()
    game.give(StopAsked(reason="Ray is silent", lost=True))
    game.give(AttemptEnded(attempt=0, error=""))
    assert game.state.outcome.phase == "lost"


def test_what_an_old_round_says_late_is_kept_but_changes_nothing(play, make_sample):
    game = play()
    game.start()
    game.end(1, exit_code=-9)
    before = game.state
    game.agent(Said(rank=0, round=0, message=Measured(sample=make_sample(9))))
    game.agent(Said(rank=0, round=0, message=Told(kind=EventKind.CHECKPOINT_PUBLISHED, message="c")))
    assert game.state == before
    assert isinstance(game.effects[-2], Forward)
    assert game.said(EventKind.CHECKPOINT_PUBLISHED)[0].round == 0


def test_what_an_old_attempt_says_is_not_heard(play):
    game = play()
    game.start()
    before = game.state
    game.give(AgentSaid(attempt=7, message=Registered(rank=0, node="x", node_id="x", pid=1)))
    game.give(AttemptEnded(attempt=7, error="old"))
    assert game.state == before


def test_a_store_that_moved_is_where_the_next_round_meets(play):
    game = play()
    game.start()
    game.agent(StoreMoved(rank=0, store_address="10.0.0.1:3000"))
    assert game.orders[-1].store_address == "10.0.0.1:2000"
    game.end(1, exit_code=-9)
    assert game.orders[-1].store_address == "10.0.0.1:3000"


def test_ranks_that_have_not_met_are_sent_to_the_new_store_and_it_is_not_charged(play):
    game = play()
    game.start()
    game.end(1, exit_code=-9)
    charged = game.state.counters.charged
    game.agent(StoreMoved(rank=0, store_address="10.0.0.1:3000"))
    game.after(60)
    assert [o.store_address for o in game.orders if o.action == "run"][-1] == "10.0.0.1:3000"
    assert game.state.counters.charged == charged
    game.step(4)
    assert game.state.phase == "running"
