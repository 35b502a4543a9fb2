"""What the README tells a newcomer holds."""

import re
from pathlib import Path

import pytest

from orchestrator.cli.app import GROUPS, SECTIONS
from orchestrator.cli.exit_code import CliError
from orchestrator.cli.job_file import JobFile

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = {function.__name__ for functions in SECTIONS.values() for function in functions} | set(GROUPS)


def test_its_job_file_is_valid() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", README, re.S)
    assert JobFile(text=text, source="README.md", overrides=()).parse().name == "my-job"


def test_the_mistakes_it_shows_are_told_as_it_shows_them() -> None:
    text = "model: {kind: llama}\ndata: {kind: text, path: python-stdlib}\nlr: 3e-4\ntrain: {stepps: 100, optimizer: {lr: -1}}\n"
    with pytest.raises(CliError) as caught:
        JobFile(text=text, source="job.yaml", overrides=()).parse()
    assert re.findall(r"^  (job\.yaml:\d+: .*)$", README, re.M) == list(caught.value.problems)


def test_every_command_it_names_exists() -> None:
    named = set(re.findall(r"(?:^|`|\$ )shardyard ([a-z]+)\b", README, re.M))
    assert named <= COMMANDS
    assert {"up", "submit", "doctor"} <= named


def test_every_file_it_leads_to_exists() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert [link for link in links if not (ROOT / link).exists()] == []
