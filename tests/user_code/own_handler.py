"""Training code that minds SIGTERM itself: it leaves a note and goes on."""

import os
import signal
from pathlib import Path

from misbehave import Misbehaving


class OwnHandler(Misbehaving):
    def build(self):
        signal.signal(signal.SIGTERM, lambda number, frame: Path(self.note).write_text(f"signal {number}"))
        return super().build()

    def signals_itself(self):
        os.kill(os.getpid(), signal.SIGTERM)


def make(**args):
    return OwnHandler(**args)
