"""A run without an orchestrator: a Ray of its own on this machine, files only, ended when the run ends."""

import json
from pathlib import Path
from typing import Final, TextIO

import ray

from workers.contract.events import Event, Sample
from workers.contract.launch import LaunchRequest
from workers.driver.checkpoints import let_go_of_origin
from workers.driver.main import drive
from workers.driver.state import Outcome

NODE_ADDRESS: Final = "127.0.0.2"  # Ray rewrites 127.0.0.1 to the machine's own address
OBJECT_STORE_BYTES: Final = 128 << 20  # nothing large passes through it
EXIT_CODES: Final = {"finished": 0, "failed": 1, "stopped": 3, "not_placed": 4, "lost": 5, "drained": 3}


class LineListener:
    """Prints what happens: JSON lines for a program, or short lines for a person."""

    def __init__(self, out: TextIO, *, json_lines: bool) -> None:
        self._out = out
        self._json_lines = json_lines

    def event(self, event: Event) -> None:
        """Print an event."""
        self._print("event", event.to_json(), f"{event.kind.value}: {event.message}")

    def sample(self, sample: Sample) -> None:
        """Print a sample; for a person only rank 0's, since loss is the same on all."""
        text = f"step {sample.step}  loss {sample.loss:.4f}  {sample.step_seconds * 1000:.0f} ms/step"
        if self._json_lines or sample.rank == 0:
            self._print("sample", sample.to_json(), text)

    def outcome(self, outcome: Outcome, run_dir: str) -> None:
        """Print the last line."""
        result = outcome.result.model_dump(mode="json") if outcome.result is not None else None
        line = {"phase": outcome.phase, "reason": outcome.reason, "run_dir": run_dir, "result": result}
        self._print(
            "outcome", json.dumps(line), f"{outcome.phase}: {outcome.reason}; everything lies in {run_dir}"
        )

    def _print(self, kind: str, data: str, text: str) -> None:
        line = f'{{"type": "{kind}", "data": {data}}}' if self._json_lines else text
        self._out.write(line + "\n")
        self._out.flush()


def run_local(request: LaunchRequest, listener: LineListener, home: Path) -> int:
    """Drive `request` on a Ray that lives in `home` (see `local_home`); returns the exit code."""
    scaling = request.config.scaling
    try:
        ray.init(
            num_cpus=request.world_size * scaling.cpus_per_worker,
            num_gpus=request.world_size * request.gpus_per_worker,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _node_ip_address=NODE_ADDRESS,
            _temp_dir=str(home),
        )
        outcome, _ = drive(request, token="", listener=listener)
    finally:
        ray.shutdown()
        let_go_of_origin(request)
    listener.outcome(outcome, request.run_dir)
    return EXIT_CODES[outcome.phase]
