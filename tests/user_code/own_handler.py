"""Training code that minds SIGTERM itself: it leaves a note, and goes on or (`leaves`) ends."""

import os
import signal
import sys
from pathlib import Path

from misbehave import Misbehaving


class OwnHandler(Misbehaving):
    def __init__(self, leaves=False, **args):
        super().__init__(**args)
        self.leaves = leaves

    def build(self):
        signal.signal(signal.SIGTERM, self.handle)
        return super().build()

    def handle(self, number, frame):
        Path(f"{self.note}.{os.environ['RANK']}").write_text(f"signal {number}")
        if self.leaves:
            sys.exit(5)

    def signals_itself(self):
        os.kill(os.getpid(), signal.SIGTERM)


def make(**args):
    return OwnHandler(**args)
