"""What may be shipped as a job's working directory."""

import os
import zipfile
from pathlib import Path

import pytest

from orchestrator import working_dir
from orchestrator.working_dir import WorkingDirError, check, pack


def test_the_archive_holds_the_code_with_its_modes_and_leaves_caches_out(tmp_path: Path) -> None:
    (tmp_path / "pkg" / "__pycache__").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("x")
    (tmp_path / "pkg" / "__pycache__" / "a.pyc").write_text("x")
    (tmp_path / "pkg" / "a.py").write_text("a = 1\n")
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    package = pack(tmp_path)
    with package.file, zipfile.ZipFile(package.file) as archive:
        assert archive.namelist() == ["run.sh", "pkg/a.py"]
        assert archive.getinfo("run.sh").external_attr >> 16 & 0o777 == 0o755
        assert archive.read("pkg/a.py") == b"a = 1\n"


def test_the_name_follows_the_content_and_not_the_clock_or_the_place(tmp_path: Path) -> None:
    names = []
    for folder, text in (("one", "a"), ("two", "a"), ("three", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text(text)
        os.utime(tmp_path / folder / "a.py", (len(names) * 1e6, len(names) * 1e6))
        package = pack(tmp_path / folder)
        package.file.close()
        names.append(package.name)
    assert names[0] == names[1] != names[2]


@pytest.mark.parametrize("name", ["workers", "orchestrator", "workers.py", "orchestrator.py"])
def test_a_name_that_would_shadow_ours_is_refused(tmp_path: Path, name: str) -> None:
    if name.endswith(".py"):
        (tmp_path / name).touch()
    else:
        (tmp_path / name).mkdir()
    with pytest.raises(WorkingDirError, match="shadow"):
        check(tmp_path)


def test_the_same_name_deeper_down_is_fine(tmp_path: Path) -> None:
    (tmp_path / "mine" / "workers").mkdir(parents=True)
    check(tmp_path)


def test_a_directory_that_is_not_there_or_not_absolute_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(WorkingDirError, match="not a directory"):
        check(tmp_path / "nothing")
    with pytest.raises(WorkingDirError, match="full path"):
        check(Path("here"))


def test_a_link_that_leads_out_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "secret").write_text("s")
    (tmp_path / "code" / "inside").write_text("i")
    (tmp_path / "code" / "ok").symlink_to("inside")
    check(tmp_path / "code")
    (tmp_path / "code" / "out").symlink_to(tmp_path / "secret")
    with pytest.raises(WorkingDirError, match="links to"):
        check(tmp_path / "code")


def test_a_directory_full_of_data_is_refused_with_both_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working_dir, "MAX_BYTES", 1 << 20)
    (tmp_path / "data").write_bytes(b"0" * (3 << 20))
    with pytest.raises(WorkingDirError, match="3 MiB, more than the 1 MiB"):
        check(tmp_path)
