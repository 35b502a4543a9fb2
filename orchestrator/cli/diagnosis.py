"""What the doctor concludes from what was measured: pure, one function a subject, each with its remedy."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

from orchestrator.api.views import ClusterView
from orchestrator.cli.wording import bytes_text, plural, seconds_text
from workers.contract.base import Message

Verdict = Literal["ok", "warn", "fail"]
GIB: Final = 1 << 30
MIN_PYTHON: Final = (3, 11)
MIN_SHM_BYTES: Final = 256 << 20  # Ray's object store is 128 MiB here; torch's loaders want some too
MIN_OPEN_FILES: Final = 4096
NEEDED_MEMORY_BYTES: Final = 3 * GIB
NEEDED_DISK_BYTES: Final = 5 * GIB
RAY_SERIES: Final = "2.60."
STALE_SECONDS: Final = 30.0
EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)  # no clock that is right shows less


class Finding(Message):
    """One subject, what was found, and what to do unless it is well."""

    subject: str
    verdict: Verdict
    found: str
    remedy: str = ""


def python(version: tuple[int, int, int], executable: str) -> Finding:
    """The interpreter."""
    text = f"{'.'.join(map(str, version))}  {executable}"
    if version[:2] < MIN_PYTHON:
        return Finding(subject="Python", verdict="fail", found=text, remedy="3.11 or newer is needed.")
    return Finding(subject="Python", verdict="ok", found=text)


def ray_package(version: str | None) -> Finding:
    """The installed Ray; the driver stands on an interface that may change with each of its releases."""
    install = f"pip install -c requirements/constraints.txt 'ray[default,train]=={RAY_SERIES}0'"
    if version is None:
        return Finding(subject="Ray", verdict="fail", found="not installed", remedy=install)
    if not version.startswith(RAY_SERIES):
        return Finding(subject="Ray", verdict="fail", found=f"{version}, not {RAY_SERIES}x", remedy=install)
    return Finding(subject="Ray", verdict="ok", found=version)


def torch_package(told: Mapping[str, Any] | str) -> Finding:
    """What a process that imported torch told, or the last line of what it died with."""
    if isinstance(told, str):
        remedy = "pip install -c requirements/constraints.txt torch"
        return Finding(subject="PyTorch", verdict="fail", found=told, remedy=remedy)
    gpus = plural(told["gpus"], "GPU") if told["gpus"] else "no GPU: jobs run on CPUs"
    return Finding(subject="PyTorch", verdict="ok", found=f"{told['version']}, {gpus}")


def worker_program(path: str | None) -> Finding:
    """The second console script."""
    if path is None:
        remedy = "Install the package again: the script belongs to it."
        return Finding(subject="Worker", verdict="fail", found="shardyard-worker is missing", remedy=remedy)
    return Finding(subject="Worker", verdict="ok", found=path)


def deepspeed_ops(told: Mapping[str, Any] | str) -> Finding:
    """What of DeepSpeed is compiled on this machine. Nothing but offload to NVMe needs it."""
    subject = "DeepSpeed"
    if isinstance(told, str):
        return Finding(
            subject=subject, verdict="warn", found=told, remedy="Without it: engine.kind fsdp, ddp."
        )
    if told["missing"]:
        remedy = "Only offload to nvme needs them. On every node: shardyard-worker ops build"
        found = f"ops are not built: {', '.join(told['missing'])}"
        return Finding(subject=subject, verdict="warn", found=found, remedy=remedy)
    return Finding(subject=subject, verdict="ok", found=f"ops are built: {', '.join(told['built'])}")


def cpus(count: int, quota: float | None) -> Finding:
    """Cores, and what the container may use of them."""
    text = plural(count, "CPU")
    if quota is not None and quota < count:
        remedy = f"Ray would count {count}: start with `shardyard up --cpus {max(1, int(quota))}`."
        return Finding(
            subject="CPU",
            verdict="warn",
            found=f"{text}, limited to {quota:g} by the container",
            remedy=remedy,
        )
    return Finding(subject="CPU", verdict="ok", found=text)


def memory(available_bytes: int, limit_bytes: int | None, used_bytes: int) -> Finding:
    """Free memory: the machine's, or what the container's limit leaves."""
    free = available_bytes if limit_bytes is None else min(available_bytes, max(0, limit_bytes - used_bytes))
    limit = "" if limit_bytes is None else f" of the container's {bytes_text(limit_bytes)}"
    found = f"{bytes_text(free)} free{limit}"
    if free < NEEDED_MEMORY_BYTES:
        remedy = f"Ray, orchestrator and two small workers take about {bytes_text(NEEDED_MEMORY_BYTES)}."
        return Finding(subject="Memory", verdict="warn", found=found, remedy=remedy)
    return Finding(subject="Memory", verdict="ok", found=found)


def shared_memory(total_bytes: int | None) -> Finding:
    """The tmpfs where Ray keeps its objects."""
    if total_bytes is None:
        remedy = "Mount a tmpfs there: Ray keeps its objects in it."
        return Finding(subject="Shared memory", verdict="fail", found="not there", remedy=remedy)
    if total_bytes < MIN_SHM_BYTES:
        remedy = "Give the container more: `--shm-size=1g`."
        return Finding(subject="Shared memory", verdict="warn", found=bytes_text(total_bytes), remedy=remedy)
    return Finding(subject="Shared memory", verdict="ok", found=bytes_text(total_bytes))


def open_files(limit: int) -> Finding:
    """How many files a process may hold open."""
    if limit < MIN_OPEN_FILES:
        remedy = f"Raise it: `ulimit -n {MIN_OPEN_FILES}`. Ray opens many sockets."
        return Finding(subject="Open files", verdict="warn", found=f"limit {limit}", remedy=remedy)
    return Finding(subject="Open files", verdict="ok", found=f"limit {limit}")


def disk(path: str, free_bytes: int, *, is_writable: bool) -> Finding:
    """Where run directories go."""
    found = f"{bytes_text(free_bytes)} free at {path}"
    if not is_writable:
        remedy = "Make it writable, or set SHARDYARD_STORAGE_ROOT."
        return Finding(subject="Storage", verdict="fail", found=f"{path} cannot be written", remedy=remedy)
    if free_bytes < NEEDED_DISK_BYTES:
        remedy = "A checkpoint takes 12 bytes a parameter, and `checkpoint.keep` of them stay. Free some, or set SHARDYARD_STORAGE_ROOT."
        return Finding(subject="Storage", verdict="warn", found=found, remedy=remedy)
    return Finding(subject="Storage", verdict="ok", found=found)


def loopback(error: str | None) -> Finding:
    """The second loopback address, where the local Ray listens: its own rewriting of 127.0.0.1 makes joins hang."""
    if error is not None:
        remedy = "Only Linux gives all of 127.0.0.0/8 to loopback; elsewhere use a Ray cluster by address."
        return Finding(subject="Loopback", verdict="fail", found=f"127.0.0.2: {error}", remedy=remedy)
    return Finding(subject="Loopback", verdict="ok", found="127.0.0.2 can be bound")


def clock(now: datetime) -> Finding:
    """Whether the time of day can be right; nothing is decided by it, but people and tokens read it."""
    found = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if now < EPOCH:
        return Finding(
            subject="Clock", verdict="warn", found=found, remedy="Set it: timelines show this time."
        )
    return Finding(subject="Clock", verdict="ok", found=found)


def token(path: str, mode: int | None) -> Finding:
    """The token file: `mode` is its permission bits, None where there is none yet."""
    if mode is None:
        return Finding(subject="Token", verdict="ok", found=f"{path} is made at the first start")
    if mode & 0o077:
        found = f"{path} has mode {mode:04o}: others can read it"
        return Finding(subject="Token", verdict="fail", found=found, remedy=f"chmod 600 {path}")
    return Finding(subject="Token", verdict="ok", found=f"{path}, mode {mode:04o}")


def port(number: int, *, is_free: bool) -> Finding:
    """The orchestrator's port, while none of ours holds it."""
    if not is_free:
        remedy = "Choose another: SHARDYARD_PORT=0 takes any free one."
        found = f"{number} is held by another program"
        return Finding(subject="Port", verdict="fail", found=found, remedy=remedy)
    return Finding(subject="Port", verdict="ok", found=f"{number} is free")


def orchestrator(url: str | None, *, version: str | None, own_version: str, error: str = "") -> Finding:
    """The service: `url` None where none is announced, `version` None where it did not answer."""
    if url is None:
        found = "not up"
        return Finding(subject="Orchestrator", verdict="warn", found=found, remedy="Start it: shardyard up")
    if version is None:
        remedy = (
            "Its log is in $SHARDYARD_HOME/logs. Start it again: shardyard up; jobs that run go on meanwhile."
        )
        return Finding(subject="Orchestrator", verdict="fail", found=error, remedy=remedy)
    if version != own_version:
        found = f"{url} runs version {version}, this is {own_version}"
        remedy = "Use the same version on both sides."
        return Finding(subject="Orchestrator", verdict="warn", found=found, remedy=remedy)
    return Finding(subject="Orchestrator", verdict="ok", found=f"{url}, version {version}")


def cluster(view: ClusterView, *, now: datetime) -> Finding:
    """What the controller last saw of Ray."""
    if not view.is_reachable:
        remedy = "`shardyard down`, then `shardyard up`; or check SHARDYARD_RAY_ADDRESS and its token."
        found = f"does not answer: {view.error or 'no reason given'}"
        return Finding(subject="Ray cluster", verdict="fail", found=found, remedy=remedy)
    age = (now - view.seen_at).total_seconds() if view.seen_at else 0.0
    have = f"{plural(len(view.nodes), 'node')}, {sum(n.cpus for n in view.nodes):g} CPUs, {sum(n.gpus for n in view.nodes):g} GPUs"
    if abs(age) > STALE_SECONDS:
        remedy = "The controller stands still, or two clocks disagree: read the service's log."
        found = f"{have}; last seen {seconds_text(abs(age))} {'ago' if age > 0 else 'in the future'}"
        return Finding(subject="Ray cluster", verdict="warn", found=found, remedy=remedy)
    held = f"; {view.held_cpus:g} CPUs held by jobs" if view.held_cpus else ""
    return Finding(subject="Ray cluster", verdict="ok", found=have + held)
