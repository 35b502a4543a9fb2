"""Logs over HTTP: every byte of a job's own, and nothing else (field cases B095, B096, B144, B146)."""

import http.client
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from workers.contract import rundir


def read_whole(yard, job_id: str, log, limit_bytes: int) -> str:
    text, offset = "", 0
    while True:
        chunk = yard.client.read_log(job_id, log, offset=offset, limit_bytes=limit_bytes)
        text += chunk.text
        if chunk.next_offset in {offset, chunk.size_bytes}:
            return text
        offset = chunk.next_offset


def test_logs_of_every_round_and_rank_are_listed_and_read(shared_yard, job_file: str) -> None:
    driver = shared_yard.launch(job_file)
    for rank in (0, 1):
        for round_ in (0, 1):
            driver.write_log(f"marker {round_} {rank}\n".encode(), round_=round_, rank=rank)
    rundir.driver_log(driver.request.run_dir, generation=1).write_text("driver speaks\n")
    logs = shared_yard.client.logs(driver.job_id)
    texts = {log.label: shared_yard.client.read_log(driver.job_id, log).text for log in logs}
    assert texts == {
        "driver g1": "driver speaks\n",
        "g1.a0.r0 rank 0": "marker 0 0\n",
        "g1.a0.r0 rank 1": "marker 0 1\n",
        "g1.a0.r1 rank 0": "marker 1 0\n",
        "g1.a0.r1 rank 1": "marker 1 1\n",
    }


@pytest.mark.parametrize("limit_bytes", [1 << 20, 7, 4])
def test_any_byte_a_rank_writes_can_be_read_to_the_end(shared_yard, job_file: str, limit_bytes: int) -> None:
    driver = shared_yard.launch(job_file)
    driver.write_log(b"\xff\xfe half \xe2\x82 nul \x00 \xf0\x9f\x9a\x82 bar\r50%\rafter\n")
    [log] = shared_yard.client.logs(driver.job_id)
    text = read_whole(shared_yard, driver.job_id, log, limit_bytes)
    assert text.endswith("after\n")
    assert "🚂" in text
    assert "\x00" in text


@pytest.mark.parametrize(
    "tail",
    [
        "/logs/1/0/0/..%2f..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/logs/1/0/0/%2e%2e",
        "/logs/1/0/0/0%00",
        "/logs/1/0/0/%2fetc%2fpasswd",
        "/logs/1/0/0/*",
        "/logs/1/0/0/0;x",
        "/logs/1/0/0/-1",
        "/logs/1/0/0/99",
        "/logs/driver/..%2f..%2frequest",
        "/logs/driver/9",
        "/logs/../../../../etc/passwd",
        "/logs/%252e%252e%252fetc%252fpasswd",
    ],
)
def test_no_path_leads_out_of_a_jobs_logs(shared_yard, job_file: str, tail: str) -> None:
    driver = shared_yard.launch(job_file)
    driver.write_log(b"mine\n")
    status, body = raw_get(shared_yard, f"/api/v1/jobs/{driver.job_id}{tail}")
    assert status in {400, 404, 422}
    assert b"root:" not in body


def raw_get(yard, path: str) -> tuple[int, bytes]:
    """Ask for a path exactly as written: ordinary clients clean it."""
    connection = http.client.HTTPConnection(urlsplit(yard.url).netloc, timeout=30)
    try:
        connection.request("GET", path, headers={"Authorization": yard.http.headers["authorization"]})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_link_among_the_logs_leads_nowhere(shared_yard, job_file: str, tmp_path: Path) -> None:
    driver = shared_yard.launch(job_file)
    (tmp_path / "secret").write_text("a secret")
    path = driver.write_log(b"")
    path.unlink()
    path.symlink_to(tmp_path / "secret")
    status, body = raw_get(shared_yard, f"/api/v1/jobs/{driver.job_id}/logs/1/0/0/0")
    assert status == 404
    assert b"a secret" not in body
