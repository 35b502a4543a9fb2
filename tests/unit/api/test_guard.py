"""Who may address the service, and which pages may not (field case B148)."""

import pytest
from starlette.datastructures import Headers

from orchestrator.api.guard import Refusal, allowed_names, judge

ALLOWED = allowed_names(host="0.0.0.0", advertise_url="http://yard.example.org:8321", extra=["Yard"])


def judged(method: str = "POST", **headers: str) -> Refusal | None:
    given = {"host": "127.0.0.1:8321"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return judge(method=method, scheme="http", headers=Headers(given), allowed=ALLOWED)


def status(refusal: Refusal | None) -> int | None:
    return refusal.status if refusal else None


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:8321",
        "127.0.0.3:1",
        "localhost:8321",
        "[::1]:8321",
        "YARD",
        "yard.example.org:8321",
    ],
)
def test_loopback_and_the_services_own_names_are_let_in(host: str) -> None:
    assert judged(host=host) is None


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "127.0.0.1.evil.example",
        "evil.example:8321",
        "yard.example.org.evil.example",
        "0.0.0.0:8321",
        "[::]",
        "me@127.0.0.1",
        "127.0.0.1/x",
        "127.0.0.1 evil",
        "[::1",
        "2130706433",
        "169.254.1.1",
        "localhost.",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_rebound_or_malformed_host_is_refused_for_every_method(host: str, method: str) -> None:
    assert status(judged(method, host=host)) == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:9999", "file://", ""])
def test_another_origin_changes_nothing_with_any_verb(method: str, origin: str) -> None:
    assert status(judged(method, origin=origin)) == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_browser_that_says_cross_site_changes_nothing(site: str) -> None:
    assert status(judged(sec_fetch_site=site)) == 403


@pytest.mark.parametrize(
    "origin", ["http://127.0.0.1:8321", "https://127.0.0.1:8321", "HTTP://127.0.0.1:8321"]
)
def test_the_services_own_pages_and_a_tls_proxy_before_it_are_let_in(origin: str) -> None:
    assert judged(origin=origin, sec_fetch_site="same-origin") is None


def test_a_program_that_sends_no_origin_is_let_in() -> None:
    assert judged() is None


def test_reading_needs_no_origin() -> None:
    assert judged("GET", origin="https://evil.example") is None
