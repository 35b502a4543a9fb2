"""Two ranks, forked and watched as agents do it, without Ray: from one warm forkserver, with its store."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from workers.agent.forkserver import WarmForkserver, hide_main_module, stop_forkserver
from workers.agent.preload import preload
from workers.agent.rank_entry import rank_entry
from workers.agent.rank_process import RankProcess
from workers.agent.store import Store
from workers.contract.config import TrainingConfig
from workers.contract.failure import RankEnding, Verdict, fold
from workers.contract.launch import LaunchRequest, RankOrder, RoundOrder
from workers.contract.restart import Counters
from workers.rank import TRACE_IMPORTS

USER_CODE = Path(__file__).parents[1] / "user_code"
NODE = "127.0.0.1"


def misbehaving(*, every_steps: int = 10, steps: int = 60, **args: Any) -> TrainingConfig:
    """The user's task of `tests/user_code/misbehave.py`."""
    return TrainingConfig.model_validate(
        {
            "model": {"kind": "task", "target": "misbehave:make", "args": args},
            "data": {"kind": "task"},
            "train": {"steps": steps, "batch": {"global_sequences": 4}, "precision": {"params": "fp32"}},
            "engine": {"kind": "ddp"},
            "scaling": {"num_workers": 2},
            "checkpoint": {"every_steps": every_steps},
            "runtime": {"env": {"FROM_THE_SPEC": "value-from-the-spec"}},
        }
    )


def llama(*, kind: str) -> TrainingConfig:
    """A real model on real text."""
    return TrainingConfig.model_validate(
        {
            "model": {"kind": "llama", "size": "nano"},
            "data": {"kind": "text", "path": str(USER_CODE), "seq_len": 64},
            "train": {"steps": 4, "batch": {"global_sequences": 4}, "precision": {"params": "fp32"}},
            "engine": {"kind": kind},
            "scaling": {"num_workers": 2},
            "checkpoint": {"every_steps": 2},
        }
    )


@contextmanager
def warm_server() -> Iterator[WarmForkserver]:
    """A forkserver for a module's tests; this process is left as it was."""
    main, environment = sys.modules["__main__"], dict(os.environ)
    file, spec = getattr(main, "__file__", None), main.__spec__
    stop_forkserver()  # of other tests in this process
    hide_main_module()
    try:
        server = WarmForkserver(
            {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", TRACE_IMPORTS: "1"},
            preloaded=preload("deepspeed"),
        )
        try:
            yield server
        finally:
            assert server.stop() == []
    finally:
        if file is not None:
            main.__file__ = file
        main.__spec__ = spec
        os.environ.clear()
        os.environ.update(environment)


class Round:
    """Both ranks of a round, watched by this process."""

    def __init__(
        self, server: WarmForkserver, run_dir: Path, config: TrainingConfig, number: int = 0
    ) -> None:
        self.run_dir = run_dir
        self.number = number
        self._store = Store(server, NODE)
        request = LaunchRequest(
            job_id="j",
            name="j",
            generation=0,
            world_size=2,
            gpus_per_worker=0,
            config=config,
            run_dir=str(run_dir),
            counters=Counters(),
            version=version("shardyard"),
        )
        order = RoundOrder(
            attempt=0, round=number, nonce="0" * 8, resume_from=None, store_address=self._store.address
        )
        self.ranks = [
            RankProcess(server, rank_entry, self._rank_order(request, order, rank), wake=lambda: None)
            for rank in range(2)
        ]
        self.said: list[list[Any]] = [[], []]

    def _rank_order(self, request: LaunchRequest, order: RoundOrder, rank: int) -> RankOrder:
        return RankOrder(
            request=request,
            round=order,
            rank=rank,
            world_size=2,
            local_rank=rank,
            local_world_size=2,
            node=NODE,
            device="cpu",
            network_interface="lo",
            environment=request.config.runtime.env,
            sys_path=(str(USER_CODE),),
        )

    def wait(self, claim: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        """Wait until `claim()`, hearing the ranks meanwhile."""
        deadline = time.monotonic() + seconds
        while True:
            for rank, process in enumerate(self.ranks):
                self.said[rank] += process.take()
            if claim():
                return
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
            time.sleep(0.01)

    def wait_for_an_ending(self) -> None:
        """Wait until a rank has ended or said its last word."""
        self.wait(lambda: any(r.is_gone or r.failed or r.done for r in self.ranks), "an ending")

    def wait_for_all(self) -> None:
        """Wait until both have ended."""
        self.wait(lambda: all(r.is_gone for r in self.ranks), "both endings")

    def end(self, *, ordered: tuple[int, ...] = ()) -> list[RankEnding]:
        """End both and say how."""
        endings = []
        for rank, process in enumerate(self.ranks):
            process.end(spare=(self._store.pid, *(r.pid for r in self.ranks)))
            self.said[rank] += process.take()
            endings.append(process.ending(ordered=rank in ordered))
        self._store.process.kill()
        return endings

    def verdict(self) -> Verdict:
        """Wait for both, end them, and fold."""
        self.wait_for_all()
        return fold(self.end())

    def log(self, rank: int) -> str:
        """What a rank printed."""
        path = self.run_dir / "logs" / "g0.a0" / f"r{self.number}" / f"rank-{rank}.log"
        return path.read_bytes().decode(errors="replace") if path.exists() else ""
