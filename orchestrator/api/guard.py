"""What every request passes before any route: whom it was addressed to, and who caused it.

A browser on this machine is the one stranger that reaches a loopback service. A page that rebinds its own name to
127.0.0.1 shows in `Host`; a page of another site that posts here shows in `Origin` and `Sec-Fetch-Site`. Both are
refused for every method that is not safe, whatever token is there.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.api.problems import problem
from orchestrator.settings import is_loopback

SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_HOST: Final = re.compile(r"^(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d{1,5})?$")
RESPONSE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request is turned away."""

    status: int
    detail: str


def allowed_names(*, host: str, advertise_url: str | None, extra: Iterable[str]) -> frozenset[str]:
    """Return the host names that a request may be addressed to; loopback addresses are allowed beside them."""
    advertised = (urlsplit(advertise_url).hostname or "") if advertise_url else ""
    names = {name.lower().strip("[]") for name in (host, advertised, *extra)}
    return frozenset(names - {"", "0.0.0.0", "::"})  # noqa: S104 -- a bind to all is no name of ours


def judge(*, method: str, scheme: str, headers: Headers, allowed: frozenset[str]) -> Refusal | None:
    """Decide whether a request comes in; None lets it. `allowed` is what `allowed_names` returned."""
    host = headers.get("host", "")
    name = _host_name(host)
    if not name or not (name in allowed or is_loopback(name)):
        return Refusal(
            status=400, detail=f"Host {host!r} is not a name of this service (SHARDYARD_ALLOWED_HOSTS)"
        )
    if method in SAFE_METHODS:
        return None
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in {f"{scheme}://{host}".lower(), f"https://{host}".lower()}:
        return Refusal(status=403, detail=f"a page of {origin!r} may not change anything here")
    if headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
        return Refusal(status=403, detail="a page of another site may not change anything here")
    return None


def _host_name(host: str) -> str:
    found = _HOST.match(host.lower())
    return found["name"].strip("[]") if found else ""


class GuardMiddleware:
    """`judge`, and headers that keep answers from being framed, sniffed, cached or run."""

    def __init__(self, app: ASGIApp, *, allowed: frozenset[str]) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = judge(
            method=scope["method"],
            scheme=scope["scheme"],
            headers=Headers(scope=scope),
            allowed=self._allowed,
        )

        async def send_hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in RESPONSE_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if refusal is None:
            await self._app(scope, receive, send_hardened)
        else:
            await problem(refusal.status, refusal.detail)(scope, receive, send_hardened)
