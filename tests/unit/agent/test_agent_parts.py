"""The parts of an agent that decide something: the lease, what a node must have, the interface, the marked processes."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import pytest

from workers.agent.checks import check_node
from workers.agent.messages import Standing, Started
from workers.agent.network import interface_of
from workers.agent.postbox import MailboxGoneError, Postbox
from workers.agent.sweep import MARK, marked, sweep
from workers.board import BOARD_SIZE, BoardProgress, clear_board, read_board
from workers.contract.config import TrainingConfig
from workers.contract.launch import LaunchRequest, RoundOrder
from workers.contract.restart import Counters
from workers.contract.rundir import request_file

ORDER = RoundOrder(attempt=0, round=0, nonce="0" * 8, resume_from=None, store_address="h:1")


class FakeMailbox:
    """Refuses the first calls, then answers with a driver that was silent for `silent` seconds."""

    def __init__(self, *, refusals: int = 0, silent: float = 0.0, gone: bool = False) -> None:
        self.refusals, self.silent, self.gone = refusals, silent, gone
        self.lines: list[str] = []
        self.waits: list[float] = []

    def tell(self, lines: Sequence[str]) -> None:
        self._answer()
        self.lines += lines

    def listen(self, seen: int, wait_seconds: float) -> Standing:
        self._answer()
        self.waits.append(wait_seconds)
        if seen:
            threading.Event().wait(wait_seconds)
        return Standing(version=1, order=ORDER, driver_silent_seconds=self.silent)

    def _answer(self) -> None:
        if self.gone:
            raise MailboxGoneError
        if self.refusals:
            self.refusals -= 1
            raise OSError("not now")


def wait_for(claim, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_line_survives_a_relay_that_does_not_answer_for_a_while():
    mailbox = FakeMailbox(refusals=3)
    postbox = Postbox(mailbox, lease_seconds=15.0, wake=lambda: None)
    postbox.start()
    postbox.tell(Started(rank=0, round=0, pid=1), at_once=True)
    wait_for(lambda: len(mailbox.lines) == 1)
    postbox.close()


def test_the_lease_runs_from_when_the_driver_was_heard_not_from_the_relays_answer():
    postbox = Postbox(FakeMailbox(silent=10.0), lease_seconds=15.0, wake=lambda: None, clock=lambda: 100.0)
    postbox.start()
    wait_for(lambda: postbox.order == (1, ORDER))
    assert postbox.lease_ends_at == 115.0  # heard at 100 when it was made; the answer's 90 is older
    postbox.close()


def test_a_driver_that_stays_silent_does_not_prolong_the_lease():
    now = [100.0]
    postbox = Postbox(FakeMailbox(silent=10.0), lease_seconds=15.0, wake=lambda: None, clock=lambda: now[0])
    now[0] = 120.0
    postbox.start()
    wait_for(lambda: postbox.order == (1, ORDER))
    assert postbox.lease_ends_at == 125.0
    postbox.close()


@pytest.mark.parametrize("lease_seconds", [0.5, 5.0, 60.0])
def test_a_healthy_driver_is_heard_several_times_in_a_lease_however_short_it_is(lease_seconds):
    mailbox = FakeMailbox()
    postbox = Postbox(mailbox, lease_seconds=lease_seconds, wake=lambda: None)
    postbox.start()
    wait_for(lambda: mailbox.waits)
    postbox.close()
    assert max(mailbox.waits) <= lease_seconds / 3


def test_a_relay_that_is_gone_wakes_the_agent():
    woken = threading.Event()
    postbox = Postbox(FakeMailbox(gone=True), lease_seconds=15.0, wake=woken.set)
    postbox.start()
    assert woken.wait(20)
    assert postbox.gone.is_set()
    postbox.close()


@pytest.fixture
def request_in(tmp_path):
    config = TrainingConfig.model_validate(
        {"model": {"kind": "llama"}, "data": {"kind": "text", "path": "python-stdlib"}}
    )
    return LaunchRequest(
        job_id="j",
        name="j",
        generation=3,
        world_size=1,
        gpus_per_worker=0,
        config=config,
        run_dir=str(tmp_path),
        counters=Counters(),
        version="1.2",
    )


def test_a_node_that_sees_the_drivers_request_and_runs_its_version_is_fit(request_in):
    request_file(request_in.run_dir, 3).write_text(request_in.to_json())
    assert check_node(request_in, installed_version="1.2") is None


def test_a_path_that_is_not_the_same_storage_is_found_before_training(request_in):
    """B066."""
    _, missing = check_node(request_in, installed_version="1.2")
    assert str(request_file(request_in.run_dir, 3)) in missing
    other = request_in.model_copy(update={"job_id": "somebody-else"})
    request_file(request_in.run_dir, 3).write_text(other.to_json())
    _, foreign = check_node(request_in, installed_version="1.2")
    assert "another one lies there" in foreign


def test_another_version_is_refused_by_both_names(request_in):
    _, text = check_node(request_in, installed_version="1.1")
    assert "1.1" in text
    assert "1.2" in text


def test_an_unlisted_loopback_address_belongs_to_the_loopback_interface():
    assert interface_of("127.0.0.1") == interface_of("127.0.0.7") != ""
    assert interface_of("203.0.113.9") == ""


def test_marked_processes_are_found_wherever_they_went_and_nobody_else():
    mark = f"{os.getpid()}-test"
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    ours = subprocess.Popen(command, env={**os.environ, MARK: mark}, start_new_session=True)
    spared = subprocess.Popen(command, env={**os.environ, MARK: mark})
    other = subprocess.Popen(command, env={**os.environ, MARK: mark + "0"})
    try:
        wait_for(lambda: set(marked(mark)) == {ours.pid, spared.pid})
        assert sweep(mark, spare=(spared.pid,)) == [ours.pid]
        assert ours.wait(timeout=20) == -9
        assert spared.poll() is None
        assert other.poll() is None
    finally:
        for process in (ours, spared, other):
            process.kill()
            process.wait()


def where(board):
    read = read_board(board)
    return read.phase, read.step


def test_the_board_tells_phase_and_step_after_its_writer_is_gone():
    board = [9] * BOARD_SIZE
    clear_board(board)
    assert where(board) == ("start", None)
    progress = BoardProgress(board)
    progress.phase, progress.step = "save", 41
    assert where(board) == ("save", 41)
    progress.step = None
    assert where(board) == ("save", None)


def test_the_board_learns_what_is_usual_of_steps_alone_once_they_are_warm():
    board, now = [0] * BOARD_SIZE, [1_000]
    progress = BoardProgress(board, clock_ns=lambda: now[0])

    def step(number, seconds, *, then=None):
        progress.phase, progress.step = "step", number
        now[0] += int(seconds * 1e9)
        if then:
            progress.phase = then
            now[0] += int(600e9)

    step(0, 90.0)  # compiles
    step(1, 5.0)
    step(2, 1.0)
    assert read_board(board).usual_step_ns == 0
    step(3, 1.0, then="save")
    step(4, 1.0, then="evaluate")
    assert read_board(board).usual_step_ns == int(1e9), "neither warm-up, nor what lies between steps"
    for number in range(5, 105):
        step(number, 3.0)
    progress.phase = "finish"
    assert read_board(board).usual_step_ns == pytest.approx(3e9, rel=0.05)
    assert read_board(board).since_ns == now[0]
