"""Launch requests on a run's storage."""

from pathlib import Path

from tests.unit.driver.conftest import make_request
from workers.contract.rundir import request_name
from workers.driver.requests import newest_request, take_charge


def test_only_the_owner_reads_a_request_and_the_newest_generation_counts(tmp_path: Path) -> None:
    """B150: it holds `runtime.env`."""
    older = make_request(run_dir=str(tmp_path / "run"), generation=0)
    newer = make_request(run_dir=str(tmp_path / "run"), generation=1)
    assert newest_request(older.storage) is None
    take_charge(older)
    take_charge(newer)
    take_charge(newer)  # a driver that starts again
    assert newest_request(older.storage) == newer
    for generation in (0, 1):
        assert (tmp_path / "run" / request_name(generation)).stat().st_mode & 0o777 == 0o600
