"""Who may call, from where, with which token (field case B148)."""

import re

import httpx
import pytest

SUBMIT = {"spec": "name: x"}


def endpoints(yard) -> list[tuple[str, str]]:
    """Every method and path of the API, as it describes itself."""
    paths = yard.http.get("/api/v1/openapi.json").json()["paths"]
    return [
        (method.upper(), re.sub(r"\{[^}]*\}", "1", path))
        for path, methods in paths.items()
        for method in methods
    ]


def test_every_path_but_health_wants_a_token(shared_yard) -> None:
    answers = {
        (method, path): httpx.request(method, shared_yard.url + path, json=None, trust_env=False).status_code
        for method, path in endpoints(shared_yard)
    }
    assert ("GET", "/api/v1/openapi.json") in answers
    assert answers.pop(("GET", "/healthz")) == 200
    assert len(answers) > 12
    assert set(answers.values()) == {401}


@pytest.mark.parametrize(
    "token", ["wrong-token-of-the-tests", "x", "the-token-of-the-test", "the-token-of-the-tests2"]
)
def test_another_token_opens_nothing(shared_yard, token: str) -> None:
    answer = shared_yard.http.get("/api/v1/jobs", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


def test_a_report_token_reports_and_does_nothing_else(shared_yard, job_file: str) -> None:
    driver = shared_yard.launch(job_file)
    assert driver.tell().action == "run"
    header = {"Authorization": f"Bearer {driver.token}"}
    tried = [one for one in endpoints(shared_yard) if not one[1].endswith(("/report", "/healthz"))]
    assert {shared_yard.http.request(*one, headers=header).status_code for one in tried} == {401}


def test_the_admin_token_cannot_speak_for_a_driver(shared_yard, job_file: str) -> None:
    driver = shared_yard.launch(job_file)
    admin = shared_yard.http.headers["authorization"].removeprefix("Bearer ")
    assert driver.post(driver.report(), token=admin).status_code == 401


def test_a_report_of_another_job_is_refused(shared_yard, job_file: str) -> None:
    first, other = shared_yard.launch(job_file), shared_yard.launch(job_file)
    assert first.post(other.report(), path=first.job_id).status_code == 422
    assert first.post(other.report(), path=other.job_id).status_code == 401


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_page_of_another_site_changes_nothing_even_with_the_token(shared_yard, method: str) -> None:
    before = shared_yard.client.jobs()
    answer = shared_yard.http.request(
        method, "/api/v1/jobs", json=SUBMIT, headers={"Origin": "https://evil.example"}
    )
    assert answer.status_code == 403
    assert shared_yard.client.jobs() == before


def test_a_name_that_was_rebound_to_loopback_is_refused(shared_yard) -> None:
    assert shared_yard.http.get("/healthz", headers={"Host": "evil.example"}).status_code == 400


def test_answers_cannot_be_framed_cached_sniffed_or_read_across_origins(shared_yard) -> None:
    headers = shared_yard.http.get("/api/v1/jobs", headers={"Origin": "https://evil.example"}).headers
    assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert not [name for name in headers if name.startswith("access-control")]
