"""ARCHITECTURE.md tells the truth about the tree."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "ARCHITECTURE.md").read_text()
NAMED = set(re.findall(r"`((?:workers|orchestrator)/[\w/.]+)`", PAGE))


def test_every_path_that_the_page_names_exists():
    assert NAMED
    assert [path for path in sorted(NAMED) if not (REPOSITORY / path).exists()] == []


def test_every_module_of_both_packages_is_on_the_page():
    for package in ("workers", "orchestrator"):
        for path in sorted((REPOSITORY / package).iterdir()):
            if path.name.startswith("__") or (path.is_file() and path.suffix != ".py"):
                continue
            name = f"{package}/{path.name}" + ("/" if path.is_dir() else "")
            assert name in NAMED, f"{name} is missing from ARCHITECTURE.md"


def test_links_of_the_page_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (REPOSITORY / target).exists(), target
