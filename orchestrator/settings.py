"""What the service is told by its environment: the only module that reads it, once, at the root of a process.

`read_settings(os.environ)` is pure; files are touched only by `load_token`, `announce` and `find_service`.
"""

import contextlib
import ipaddress
import json
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, ValidationError, model_validator

from orchestrator.errors import OrchestratorError
from workers.contract.base import Strict
from workers.contract.launch import DEFAULT_LEASE_SECONDS

PREFIX: Final = "SHARDYARD_"
LISTS: Final = frozenset({"allowed_hosts", "allowed_roots"})  # settings that hold several values
DEFAULT_PORT: Final = 8321
MIN_TOKEN_LENGTH: Final = 16
HTTP_SCHEMES: Final = ("http://", "https://")


class SettingsError(OrchestratorError):
    """A setting is wrong: which, why, what to do."""


class Settings(Strict):
    """The service's settings, each from `SHARDYARD_<NAME IN CAPITALS>`; all have a default."""

    home: Path = Path("~/.shardyard")
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = DEFAULT_PORT  # 0: any free one
    token: str | None = None
    token_file: Path | None = None  # None: `<home>/token`, made at the first start
    database_url: str | None = None  # None: SQLite in `<home>/shardyard.db`
    ray_address: str | None = None  # the dashboard's HTTP address; None: no cluster, jobs wait
    ray_auth_token_path: Path | None = None
    storage_root: Path | None = None  # None: `<home>/storage`
    allowed_roots: tuple[
        str, ...
    ] = ()  # more places that job files may name, directories and URLs, comma-separated
    ship_package: bool = False  # send our own package along with each job (docs/deploy.md)
    advertise_url: str | None = None  # how nodes reach this service; None: http://<host>:<port>
    allowed_hosts: tuple[str, ...] = ()  # more names that the Host header may hold, comma-separated
    lease_seconds: Annotated[float, Field(gt=0)] = DEFAULT_LEASE_SECONDS

    @model_validator(mode="after")
    def _wide_bind_has_a_token(self) -> Self:
        if not is_loopback(self.host) and self.token is None and self.token_file is None:
            raise ValueError(
                f"host {self.host} is reachable from other machines and whoever submits a job runs code: "
                f"set {PREFIX}TOKEN_FILE (or {PREFIX}TOKEN), or bind to 127.0.0.1"
            )
        return self

    @model_validator(mode="after")
    def _nodes_have_an_address_to_report_to(self) -> Self:
        if self.host in {"0.0.0.0", "::"} and self.advertise_url is None:  # noqa: S104 -- compared, not bound
            raise ValueError(
                f"host {self.host} is no address that nodes can call: set {PREFIX}ADVERTISE_URL to one, "
                "http://<name of this machine>:<port>"
            )
        return self

    @model_validator(mode="after")
    def _urls_are_http(self) -> Self:
        for name in ("ray_address", "advertise_url"):
            url = getattr(self, name)
            if url is not None and not url.startswith(HTTP_SCHEMES):
                raise ValueError(f"{name} {url!r} is not an http:// or https:// address")
        return self

    @property
    def home_dir(self) -> Path:
        """The state directory, absolute."""
        return self.home.expanduser().absolute()

    @property
    def database(self) -> str:
        """SQLAlchemy URL of the store."""
        return self.database_url or f"sqlite:///{self.home_dir / 'shardyard.db'}"

    @property
    def storage_dir(self) -> Path:
        """Where run directories lie, absolute, unless a job file names a place under an allowed root."""
        return (self.storage_root or self.home_dir / "storage").expanduser().absolute()


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a service answers, and with which token."""

    url: str
    token: str | None


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Build settings from `SHARDYARD_*`; other names and empty values count as not given. Raises SettingsError."""
    given: dict[str, object] = {}
    for name in Settings.model_fields:
        value = environ.get(PREFIX + name.upper(), "").strip()
        if value:
            given[name] = _items(value) if name in LISTS else value
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        raise SettingsError("; ".join(_sentence(one) for one in error.errors())) from error


def _items(value: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, value.split(","))))


def _sentence(error: Mapping[str, object]) -> str:
    location = error["loc"]
    assert isinstance(location, tuple)
    message = str(error["msg"]).removeprefix("Value error, ")
    if not location:
        return message
    return f"{PREFIX}{str(location[0]).upper()}: {error['input']!r}: {message}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`. An unknown name counts as reachable from outside."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def load_token(settings: Settings) -> str:
    """Return the admin token; make `<home>/token` (mode 0600) if none is configured and none is there.

    Raises SettingsError for a token that is too short, a file that cannot be read, or one in the state
    directory that other users can read.
    """
    if settings.token is not None:
        return _checked(settings.token, f"{PREFIX}TOKEN")
    own = settings.home_dir / "token"
    path = settings.token_file.expanduser() if settings.token_file else own
    if path == own and not own.exists():
        _write_private(own, secrets.token_urlsafe(32) + "\n", replace=False)
    try:
        if path == own and stat.S_IMODE(own.stat().st_mode) & 0o077:
            raise SettingsError(f"{own} can be read by other users: `chmod 600 {own}`")
        return _checked(path.read_text(encoding="utf-8").strip(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the token file {path} cannot be read: {error}") from error


def _checked(token: str, source: str) -> str:
    if len(token) < MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        raise SettingsError(
            f"{source}: a token is {MIN_TOKEN_LENGTH} or more printable ASCII characters without spaces"
        )
    return token


def _write_private(path: Path, text: str, *, replace: bool) -> None:
    """Write a file of mode 0600 at once; with `replace` False, whoever was first wins."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        if replace:
            draft.replace(path)
        else:
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)


# ---- how a client on the same machine finds the service


def _service_file(settings: Settings) -> Path:
    return settings.home_dir / "service.json"


def announce(settings: Settings, *, url: str, pid: int) -> None:
    """Leave the URL of the running service in the state directory."""
    _write_private(_service_file(settings), json.dumps({"url": url, "pid": pid}) + "\n", replace=True)


def withdraw(settings: Settings, *, pid: int) -> None:
    """Take the announcement back, unless another service has announced itself since."""
    path = _service_file(settings)
    with contextlib.suppress(OSError, ValueError, KeyError):
        if json.loads(path.read_text(encoding="utf-8"))["pid"] == pid:
            path.unlink()


def find_service(environ: Mapping[str, str]) -> Endpoint | None:
    """Where a client shall call: `SHARDYARD_URL`, else what the service of this state directory announced.

    None where neither is there. Makes no token. Raises SettingsError.
    """
    settings = read_settings({**environ, f"{PREFIX}HOST": "127.0.0.1"})  # a client binds nothing
    url = environ.get(f"{PREFIX}URL", "").strip() or _announced_url(settings)
    if url is None:
        return None
    if not url.startswith(HTTP_SCHEMES):
        raise SettingsError(f"{PREFIX}URL: {url!r} is not an http:// or https:// address")
    has_token = settings.token or settings.token_file or (settings.home_dir / "token").exists()
    return Endpoint(url=url.rstrip("/"), token=load_token(settings) if has_token else None)


def _announced_url(settings: Settings) -> str | None:
    try:
        return str(json.loads(_service_file(settings).read_text(encoding="utf-8"))["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
