"""The service, put together and run: the only place that knows every part by name."""

import fcntl
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from importlib.metadata import version
from types import FrameType
from typing import Final

import uvicorn
from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from starlette.types import Lifespan

from orchestrator.api.build import build_api
from orchestrator.api.door import Door, utc_now
from orchestrator.api.guard import allowed_names
from orchestrator.cluster import RayBackend
from orchestrator.controller import Controller, Policy
from orchestrator.no_cluster import NoCluster
from orchestrator.ray_backend import RayJobsBackend
from orchestrator.service import Roots, Service
from orchestrator.settings import Settings, SettingsError, announce, load_token, withdraw
from orchestrator.store import Store

GRACE_SECONDS: Final = 3  # for requests that are under way when the service is told to end
JOIN_SECONDS: Final = 10.0  # for the controller's tick that is under way then

logger = logging.getLogger(__name__)


def create_app(settings: Settings, backend: RayBackend | None = None) -> FastAPI:
    """Put the service together. Its controller runs while the application's lifespan does, which also ends the store.

    `backend` None: the Ray cluster that the settings name. Opens the store, and makes the state and storage
    directories and the token file where they are missing. Raises SettingsError, StoreError.
    """
    token = load_token(settings)
    settings.home_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings.storage_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as building:
        store = Store.open(settings.database)
        building.callback(store.close)
        controller = Controller(
            store,
            _backend(settings, building) if backend is None else backend,
            policy=Policy(report_url=advertised_url(settings), lease_seconds=settings.lease_seconds),
            now=utc_now,
            monotonic=time.monotonic,
        )
        door = _door(settings, store, controller, token=token)
        return build_api(
            door,
            allowed_names=allowed_names(
                host=settings.host, advertise_url=door.advertise_url, extra=settings.allowed_hosts
            ),
            lifespan=_lifespan(controller, resources=building.pop_all()),
        )


def _door(settings: Settings, store: Store, controller: Controller, *, token: str) -> Door:
    roots = Roots.of(settings.storage_dir, settings.allowed_roots)
    return Door(
        service=Service(store, roots=roots, now=utc_now, notify=controller.wake),
        admin_token=token,
        version=version("shardyard"),
        advertise_url=advertised_url(settings),
        sight=lambda: controller.sight,
        ticks=lambda: controller.ticks,
    )


def _backend(settings: Settings, building: ExitStack) -> RayBackend:
    if settings.ray_address is None:
        return NoCluster()
    backend = RayJobsBackend(
        settings.ray_address,
        token_path=settings.ray_auth_token_path,
        ships_package=settings.ship_package,
    )
    building.callback(backend.close)
    return backend


def _lifespan(controller: Controller, *, resources: ExitStack) -> Lifespan[FastAPI]:
    """Run the controller beside the requests; afterwards close what it and they used."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=controller.run, args=(stop,), name="controller", daemon=True)
        with resources:
            thread.start()
            try:
                yield
            finally:
                stop.set()
                controller.wake()
                await run_in_threadpool(thread.join, JOIN_SECONDS)

    return lifespan


def advertised_url(settings: Settings) -> str:
    """Return where nodes and Prometheus call: what the settings say, else the bound address."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return (settings.advertise_url or f"http://{host}:{settings.port}").rstrip("/")


# ---- the process


def serve(settings: Settings) -> None:
    """Run the service until SIGTERM or SIGINT; returns then. Announces itself in the state directory.

    Raises SettingsError where the port is taken or another service owns the state directory, StoreError.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every question to Ray says nothing
    signal.signal(signal.SIGTERM, _end)
    with ExitStack() as stack:
        stack.enter_context(_only_service(settings))
        listener = stack.enter_context(_bind(settings))
        settings = settings.model_copy(update={"port": listener.getsockname()[1]})
        app = create_app(settings)
        stack.enter_context(_announced(settings))
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,  # followers ask every second; what changes a job is in its timeline
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except (KeyboardInterrupt, SystemExit) as ending:
            # The server has shut down in order and hands its signal on; anything else did not start.
            if isinstance(ending, SystemExit) and ending.code:
                raise
            logger.info("ended")


def _end(signum: int, frame: FrameType | None) -> None:
    """End as a program does, not as a signal: what is on the stack is put away."""
    sys.exit(0)


@contextmanager
def _only_service(settings: Settings) -> Iterator[None]:
    """Hold the state directory: two controllers would both submit what is queued. The lock dies with its holder."""
    home = settings.home_dir
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(home / "service.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SettingsError(f"another service runs with SHARDYARD_HOME {home}") from error
        yield
    finally:
        os.close(descriptor)


def _bind(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=256)
    except OSError as error:
        raise SettingsError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror}; "
            "set SHARDYARD_PORT to another one, or to 0 for any"
        ) from error


@contextmanager
def _announced(settings: Settings) -> Iterator[None]:
    announce(settings, url=local_url(settings), pid=os.getpid())
    logger.info("listening on %s, state in %s", local_url(settings), settings.home_dir)
    try:
        yield
    finally:
        withdraw(settings, pid=os.getpid())


def local_url(settings: Settings) -> str:
    """Return where a client on this machine calls."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 -- a lookup
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"
