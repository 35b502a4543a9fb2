"""Which commit a benchmark ran on."""

import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]


def commit(*written: Path) -> str:
    """Return HEAD, with "+" if files under version control differ from it, other than those that the program writes."""

    def git(*args: str) -> str:
        return subprocess.run(
            ["git", *args], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.strip()

    others = [f":(exclude){path.relative_to(ROOT)}" for path in written]
    changes = git("status", "--porcelain", "--untracked-files=no", "--", ".", *others)
    return git("rev-parse", "--short=12", "HEAD") + ("+" if changes else "")
