"""A user's training code, with every way to go wrong. Steps are counted from where the rank process began."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

AT_IMPORT = os.environ.get("FROM_THE_SPEC", "unset")
PLACE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
PLACE_AT_IMPORT = " ".join(os.environ.get(name, "unset") for name in PLACE)


class Rows:
    digest = "rows"

    def __len__(self):
        return 1000

    def batch(self, ids):
        x = torch.stack([torch.full((4,), float(i % 7)) for i in ids])
        return {"x": x, "y": x.sum(1, keepdim=True)}


def _sleep_long():
    time.sleep(600)


class Misbehaving:
    """`do` happens on `rank` in its step `step`: once in the run's life if `once` names a file, else every time."""

    def __init__(self, do="nothing", rank=1, step=3, seconds=0.0, once=None, note=None):
        self.do, self.rank, self.step, self.seconds = do, rank, step, seconds
        self.once = Path(once) if once else None
        self.note = Path(note) if note else None
        self.calls = 0
        self.kept = []

    def build(self):
        return nn.Linear(4, 1)

    def blocks(self, module):
        return ()

    def num_tokens(self, batch):
        return len(batch["x"])

    def dataset(self, cache_dir):
        return Rows()

    def loss_sum(self, module, batch):
        place = f"env {AT_IMPORT} place {PLACE_AT_IMPORT}"
        print(f"rank {os.environ['RANK']} pid {os.getpid()} {place} call {self.calls}")
        time.sleep(self.seconds)
        if dist.get_rank() == self.rank and self.calls == self.step and self._is_due():
            getattr(self, self.do)()
        self.calls += 1
        return (module(batch["x"]) - batch["y"]).square().sum()

    def _is_due(self):
        if self.once is None:
            return True
        if self.once.exists():
            return False
        self.once.touch()
        return True

    def nothing(self):
        pass

    def raises(self):
        raise ValueError("marker-123")

    def exits(self):
        sys.exit(7)

    def vanishes(self):
        os._exit(0)

    def segfaults(self):
        os.kill(os.getpid(), signal.SIGSEGV)

    def sleeps(self):
        time.sleep(3600)

    def spins(self):
        while True:
            pass

    def out_of_memory(self):
        raise MemoryError("no more")

    def prints_odd_bytes(self):
        os.write(1, b"\xff\xfe half \xe2\x82 nul \0 " + b"x" * (1 << 20))
        sys.stdout.write("\r10 %\r20 %")
        print("\nafter")

    def spawns(self):
        """Two forked loaders, and a detached process that no parent remembers."""
        context = multiprocessing.get_context("fork")
        self.kept = [context.Process(target=_sleep_long) for _ in range(2)]
        for process in self.kept:
            process.start()
        detached = subprocess.Popen(["sleep", "600"], start_new_session=True)
        self.note.write_text("\n".join(str(p) for p in [*(q.pid for q in self.kept), detached.pid]))

    def spawns_and_sleeps(self):
        self.spawns()
        time.sleep(3600)

    def prints_without_newline_and_dies(self):
        sys.stdout.write("last words")
        os.kill(os.getpid(), signal.SIGKILL)


def make(**args):
    return Misbehaving(**args)
