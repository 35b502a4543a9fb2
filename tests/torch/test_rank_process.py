"""How a forked rank ends, in every way that user code and the system know, and what it leaves: words, a log, no process."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_ranks import Round, llama, misbehaving, warm_server

from workers.agent.forkserver import WarmForkserver
from workers.agent.messages import Stalled
from workers.board import read_board
from workers.checkpointing import catalog
from workers.contract.config import TrainingConfig
from workers.contract.failure import FailureClass
from workers.contract.rank_messages import Done, Left, Measured, Ready
from workers.driver.drain import last_step

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def server() -> Iterator[WarmForkserver]:
    with warm_server() as started:
        yield started


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_the_forkserver_imported_everything_beforehand(server):
    assert server.cold_modules == ()
    assert "\nThreads:\t1\n" in Path(f"/proc/{server.pid}/status").read_text(), (
        "what is forked has one thread only"
    )


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "deepspeed"])
def test_a_first_step_imports_nothing_more_of_torch(server, tmp_path, kind):
    both = Round(server, tmp_path, llama(kind=kind))
    both.wait_for_all()
    both.end()
    assert [type(message) for message in both.said[0]].count(Done) == 1, both.log(0)
    assert "modules were imported in this rank" in both.log(0), "the user's own code, at least"
    late = [word for word in both.log(0).split() if word.startswith(("torch", "deepspeed"))]
    assert " ".join(late) == ""


def test_a_rank_tells_ready_then_its_first_step_and_is_done_last(server, tmp_path):
    both = Round(server, tmp_path, misbehaving(steps=5))
    both.wait_for_all()
    endings = both.end()
    for rank in range(2):
        kinds = [type(message) for message in both.said[rank]]
        assert (kinds[0], kinds[-1]) == (Ready, Done), both.log(rank)
        assert next(m for m in both.said[rank] if isinstance(m, Measured)).sample.step == 1
        assert endings[rank].exit_code == 0


def test_the_first_failing_rank_is_named_with_its_traceback(server, tmp_path):
    """B094."""
    both = Round(server, tmp_path, misbehaving(do="raises", rank=1, step=3))
    verdict = both.verdict()
    assert (verdict.failure_class, verdict.first_rank) == (FailureClass.USER_CODE, 1)
    assert (verdict.phase, verdict.step) == ("step", 4)
    assert "marker-123" in verdict.summary
    assert "misbehave.py" in verdict.traceback
    assert verdict.consequences == (0,)
    assert "ValueError: marker-123" in both.log(1)


def test_an_exit_code_of_user_code_is_kept(server, tmp_path):
    """B098."""
    both = Round(server, tmp_path, misbehaving(do="exits", rank=1))
    both.wait_for_all()
    endings = both.end()
    assert endings[1].exit_code == 7
    assert endings[1].failure_class is FailureClass.USER_CODE
    assert "exit(7)" in endings[1].message


def test_leaving_early_with_code_zero_is_no_success(server, tmp_path):
    verdict = Round(server, tmp_path, misbehaving(do="vanishes", rank=1)).verdict()
    assert (verdict.failure_class, verdict.first_rank) == (FailureClass.USER_CODE, 1)
    assert "before the last step" in verdict.summary


def test_a_signal_is_told_with_phase_and_step(server, tmp_path):
    """B098."""
    verdict = Round(server, tmp_path, misbehaving(do="segfaults", rank=1, step=4)).verdict()
    assert (verdict.failure_class, verdict.first_rank) == (FailureClass.RANK_LOST, 1)
    assert (verdict.phase, verdict.step) == ("step", 5)
    assert "killed by signal 11" in verdict.summary


def own_handler(**args) -> TrainingConfig:
    config = misbehaving(**args)
    return config.model_copy(update={"model": config.model.model_copy(update={"target": "own_handler:make"})})


def test_the_users_own_signal_handler_is_left_in_place(server, tmp_path):
    """B128: it runs, training goes on, and what is saved is published."""
    note = tmp_path / "note"
    both = Round(
        server, tmp_path, own_handler(do="signals_itself", rank=1, steps=6, every_steps=2, note=str(note))
    )
    both.wait_for_all()
    both.end()
    assert Path(f"{note}.1").read_text() == "signal 15"
    assert [type(said[-1]) for said in both.said] == [Done, Done], both.log(1)
    assert sorted(m.checkpoint.step for m in catalog.published(str(tmp_path))) == [2, 4, 6]


def test_a_rank_that_handles_sigterm_leaves_in_its_own_way_when_it_is_asked(server, tmp_path):
    """B128: the handler runs, and the rank has its grace."""
    note = tmp_path / "note"
    both = Round(server, tmp_path, own_handler(leaves=True, seconds=0.05, steps=10_000, note=str(note)))
    both.wait(lambda: both.ranks[1].ask_to_end(60.0), "that it has a handler of its own is known")
    assert both.ranks[1].is_gone
    endings = both.end(ordered=(1,))
    assert Path(f"{note}.1").read_text() == "signal 15"
    assert (endings[1].exit_code, endings[1].signal) == (5, None)


def test_a_rank_that_goes_on_after_sigterm_is_killed_and_one_without_a_handler_is_not_asked(server, tmp_path):
    """B128."""
    note = tmp_path / "note"
    both = Round(server, tmp_path, own_handler(seconds=0.05, steps=10_000, note=str(note)))
    both.wait(lambda: both.ranks[0].ask_to_end(0.5), "that it has a handler of its own is known")
    assert not both.ranks[0].is_gone
    both.wait(lambda: Path(f"{note}.0").exists(), "the handler's note")
    endings = both.end(ordered=(0, 1))
    assert endings[0].signal == signal.SIGKILL

    plain = Round(server, tmp_path, misbehaving(seconds=0.05, steps=10_000), number=1)
    plain.wait(lambda: read_board(plain.ranks[0]._board).collectives > 0, "the first beat of its pulse")
    assert not plain.ranks[0].ask_to_end(60.0)
    assert not plain.ranks[0].is_told_to_leave
    plain.end(ordered=(0, 1))


def test_running_out_of_memory_is_told_apart(server, tmp_path):
    verdict = Round(server, tmp_path, misbehaving(do="out_of_memory", rank=0)).verdict()
    assert (verdict.failure_class, verdict.first_rank) == (FailureClass.OUT_OF_MEMORY, 0)


def test_the_specs_environment_is_there_when_user_code_is_imported(server, tmp_path):
    """B100."""
    both = Round(server, tmp_path, misbehaving(steps=2))
    both.wait_for_all()
    both.end()
    for rank in range(2):
        assert f"env value-from-the-spec place {rank} {rank} 2 2 call" in both.log(rank)


def test_odd_bytes_do_not_end_a_log(server, tmp_path):
    both = Round(server, tmp_path, misbehaving(do="prints_odd_bytes", rank=1, seconds=0.05, steps=200))
    both.wait(lambda: "\nafter\n" in both.log(1), "what was printed after the odd bytes, while it runs")
    assert not both.ranks[1].is_gone
    assert "\r10 %\r20 %" in both.log(1)
    assert (tmp_path / "logs/g0.a0/r0/rank-1.log").read_bytes().count(b"\xff\xfe half \xe2\x82 nul \0") == 1
    both.end(ordered=(0, 1))


def test_a_killed_rank_keeps_what_it_printed_last(server, tmp_path):
    both = Round(server, tmp_path, misbehaving(do="prints_without_newline_and_dies", rank=1))
    both.wait_for_all()
    both.end()
    assert both.log(1).endswith("last words")


def test_what_a_rank_started_goes_with_it_detached_or_not(server, tmp_path):
    note = tmp_path / "spawned"
    both = Round(
        server, tmp_path, misbehaving(do="spawns", rank=1, step=1, seconds=0.05, steps=400, note=str(note))
    )
    both.wait(lambda: note.exists() and len(note.read_text().split()) == 3, "the rank's children")
    spawned = [int(pid) for pid in note.read_text().split()]
    assert all(is_alive(pid) for pid in spawned)
    os.kill(both.ranks[1].pid, signal.SIGKILL)
    both.wait_for_an_ending()
    both.end()
    deadline = time.monotonic() + 10
    while any(is_alive(pid) for pid in spawned):
        assert time.monotonic() < deadline, spawned
        time.sleep(0.01)


def test_an_agent_that_is_killed_leaves_nothing_behind(tmp_path, orphan_maker):
    """The agent here is a plain process with a forkserver, a store, two ranks in a collective, and a detached sleep."""
    agent, everything, temporary = orphan_maker(tmp_path)
    assert len(everything) >= 7
    assert list(temporary.glob("shardyard-agent-*"))
    os.kill(agent, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(is_alive(pid) for pid in everything):
        assert time.monotonic() < deadline, [pid for pid in everything if is_alive(pid)]
        time.sleep(0.01)
    assert [*temporary.glob("shardyard-agent-*"), *temporary.glob("pymp-*")] == []


@pytest.fixture
def orphan_maker():
    import subprocess
    import sys
    import tempfile

    script = """
import sys, time
from pathlib import Path
sys.path[:0] = [sys.argv[2]]
from forked_ranks import Round, misbehaving, warm_server
from workers.agent.sweep import marked
with warm_server() as server:
    note = Path(sys.argv[1]) / "spawned"
    config = misbehaving(do="spawns_and_sleeps", rank=1, step=1, steps=400, note=str(note))
    both = Round(server, Path(sys.argv[1]), config)
    both.wait(lambda: note.exists() and len(note.read_text().split()) == 3, "children")
    print(*marked(server.mark), flush=True)
    time.sleep(600)
"""
    started = []
    temporary = tempfile.TemporaryDirectory()  # short, as the path of a socket has to be

    def make(directory: Path) -> tuple[int, list[int], Path]:
        here = str(Path(__file__).parent)
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(directory), here],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": temporary.name},
        )
        started.append(process)
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        return process.pid, pids, Path(temporary.name)

    yield make
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
    temporary.cleanup()


def stalls_of(both: Round) -> list[Stalled]:
    """Both ranks' words, once both have stood still for long and their counts are up to date."""
    both.wait(lambda: all((stall := rank.stall()) and stall.seconds > 8 for rank in both.ranks), "standstill")
    return [stall for rank in both.ranks if (stall := rank.stall()) is not None]


@pytest.mark.parametrize("do", ["sleeps", "spins", "stopped"])
def test_a_rank_that_hangs_is_told_from_those_that_wait_for_it(server, tmp_path, do):
    """B093."""
    both = Round(
        server, tmp_path, misbehaving(do="nothing" if do == "stopped" else do, rank=1, step=20, seconds=0.05)
    )
    if do == "stopped":
        both.wait(lambda: "call 20" in both.log(1), "some steps")
        os.kill(both.ranks[1].pid, signal.SIGSTOP)
    waits, hangs = stalls_of(both)
    assert (waits.phase, hangs.phase) == ("step", "step")
    assert waits.usual_step_seconds > 0.05
    assert hangs.collectives < waits.collectives
    assert (hangs.process_state == "T") == (do == "stopped")
    if do != "stopped":
        both.wait(lambda: f"in {do}" in both.log(1), "its stacks, in its log")
    both.end(ordered=(0, 1))


def test_ranks_leave_at_the_same_step_when_one_is_told_to_and_save_it(server, tmp_path):
    """B125, B126, B127: SIGTERM to a rank in a step; what it has forked is not what the notice is for."""
    note = tmp_path / "spawned"
    config = misbehaving(
        do="spawns", rank=1, step=5, seconds=0.02, steps=4000, every_steps=4000, note=str(note)
    )
    both = Round(server, tmp_path, config)
    both.wait(lambda: note.exists() and len(note.read_text().split()) == 3, "some steps")
    loader = int(note.read_text().split()[0])
    os.kill(loader, signal.SIGTERM)
    both.wait(lambda: not is_alive(loader), "the end of the loader")
    os.kill(both.ranks[1].pid, signal.SIGTERM)
    both.wait(lambda: both.ranks[1].is_told_to_leave, "the notice")
    assert not both.ranks[0].is_told_to_leave
    finished = {rank: both.ranks[rank].ask_to_leave(None) for rank in (1, 0)}
    for rank in both.ranks:
        rank.ask_to_leave(last_step(finished))
    both.wait_for_all()
    endings = both.end()
    assert [ending.exit_code for ending in endings] == [0, 0], both.log(1)
    last = [said[-1] for said in both.said]
    assert [type(word) for word in last] == [Left, Left]
    assert last[0] == last[1]
    assert last[0].step == last_step(finished) > 5
    [published] = catalog.published(str(tmp_path))
    assert (str(published.checkpoint), published.resume.step) == (last[0].checkpoint, last[0].step)


def test_ranks_that_are_told_to_leave_before_their_first_step_do_so(server, tmp_path):
    """B127."""
    both = Round(server, tmp_path, misbehaving(steps=4000, seconds=0.02))
    finished = {rank: both.ranks[rank].ask_to_leave(None) for rank in (0, 1)}
    assert finished == {0: -1, 1: -1}
    for rank in both.ranks:
        rank.ask_to_leave(last_step(finished))
    both.wait_for_all()
    both.end()
    assert [said[-1] for said in both.said] == [Left(step=0, checkpoint=None)] * 2
