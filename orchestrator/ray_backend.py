"""The only file that speaks to Ray: over HTTP, to the Jobs and State APIs of its dashboard.

No Ray is imported, so the service neither joins the cluster nor shares its version of Ray, and every call is
bounded in time. How the package reaches the nodes is told in docs/deploy.md.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx

from orchestrator.archive import Package, own_package
from orchestrator.cluster import Capacity, Node, RayJobState, RayJobStatus, RayUnavailable
from orchestrator.working_dir import pack
from workers.contract.config import Runtime
from workers.contract.launch import LAUNCH_ENV, REPORT_TOKEN_ENV, LaunchRequest

# The console script, not `python -m`: its first line names the interpreter that holds the package, and a folder
# `workers` where the driver happens to start cannot take its place. `exec`: Ray's SIGTERM reaches the driver itself.
ENTRYPOINT: Final = "exec shardyard-worker drive"
# Where the package is shipped with the job there is no script; Ray's own `python` finds it on PYTHONPATH.
SHIPPED_ENTRYPOINT: Final = "exec python -P -c 'from workers.cli import main; main()' drive"
CALL_SECONDS: Final = 10.0
SUBMIT_SECONDS: Final = 30.0  # Ray answers only once an agent has taken the job
UPLOAD_SECONDS: Final = 120.0
_SUPERVISOR: Final = "_ray_internal_job_actor_"  # the actor in whose process group a job's entrypoint runs
# Ray Train's own detached actor (2.60): the first job that needs it makes it, every later one shares it.
_CLUSTER_WIDE: Final = frozenset({"_AutoscalingCoordinatorActor"})
_LIST_LIMIT: Final = 10_000  # the most that Ray's State API lists
_MESSAGE_CHARS: Final = 4000
_KNOWN_STATES: Final = frozenset(RayJobState) - {RayJobState.MISSING}


def ray_job_id(request: LaunchRequest) -> str:
    """Name a generation's Ray job: one submission for ever, which is what makes `submit` safe to repeat."""
    return f"{request.job_id}-{request.generation}"


class RayJobsBackend:
    """A `RayBackend` over HTTP. Holds one connection pool; methods may be called from several threads."""

    def __init__(
        self,
        address: str,
        *,
        token_path: Path | None,
        entrypoint: str | None = None,
        ships_package: bool = False,
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        """Use the dashboard at `address` (http://host:port); the token is read at each call, as clusters come and go.

        `ships_package`: each job brings `workers` along, for nodes that have Ray, torch and the rest, but not us.
        """
        self._address = address
        self._token_path = token_path
        self._ships_package = ships_package
        self._entrypoint = entrypoint or (SHIPPED_ENTRYPOINT if ships_package else ENTRYPOINT)
        self._client = httpx.Client(base_url=address, timeout=call_seconds, trust_env=False)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def capacity(self) -> Capacity:
        """Every alive node, with all that it has."""
        return Capacity(nodes=tuple(_node(row) for row in self._list("nodes", state="ALIVE")))

    def submit(self, request: LaunchRequest, *, report_token: str, runtime: Runtime) -> None:
        """Submit the generation's Ray job; nothing happens where it exists already.

        Raises RayUnavailable, and WorkingDirError for a working directory that cannot be shipped.
        """
        name = ray_job_id(request)
        if self.status(name).state is not RayJobState.MISSING:
            return
        shipped: dict[str, Any] = {}
        if runtime.working_dir is not None:
            shipped["working_dir"] = self._ship(pack(Path(runtime.working_dir)))
        if self._ships_package:
            shipped["py_modules"] = [self._ship(own_package())]
        environment = {
            **runtime.env,
            LAUNCH_ENV: request.to_json(),
            REPORT_TOKEN_ENV: report_token,
            "PYTHONSAFEPATH": "1",
        }
        answer = self._call(
            "POST",
            "/api/jobs/",
            timeout=SUBMIT_SECONDS,
            json={
                "entrypoint": self._entrypoint,
                "submission_id": name,
                "runtime_env": {"env_vars": environment, **shipped},
                "metadata": {"job_name": request.name},
            },
        )
        if answer.is_error and self.status(name).state is RayJobState.MISSING:
            raise RayUnavailable(f"Ray did not take job {name}: {_said(answer)}")

    def status(self, ray_job_id: str) -> RayJobStatus:
        """What Ray says of the job; MISSING where it does not know it."""
        details = self._details(ray_job_id)
        if details is None:
            return RayJobStatus(state=RayJobState.MISSING)
        return RayJobStatus(
            state=RayJobState(details["status"]), message=_shortened(str(details.get("message") or ""))
        )

    def stop(self, ray_job_id: str) -> None:
        """Ask Ray to end the driver: SIGTERM, 3 s, SIGKILL. Nothing happens where it is over or unknown."""
        answer = self._call("POST", f"/api/jobs/{ray_job_id}/stop")
        if answer.is_error and answer.status_code != httpx.codes.NOT_FOUND:
            raise RayUnavailable(f"Ray did not stop job {ray_job_id}: {_said(answer)}")

    def leftovers(self, ray_job_id: str) -> Sequence[str]:
        """Live placement groups, actors and processes of the job, each in words; empty once nothing is held.

        Ray calls an actor dead once it has given it up; its process may live on for as long as the machine is busy.
        """
        details = self._details(ray_job_id)
        driver = None if details is None else details.get("job_id")
        if driver is None:  # unknown to Ray, or its driver never got so far as to connect
            return []
        supervisor = self._list("actors", name=f"{_SUPERVISOR}{ray_job_id}")  # belongs to Ray's own job
        actors = [*self._list("actors", job_id=str(driver)), *supervisor]
        groups = self._list("placement_groups", creator_job_id=str(driver))
        alive = {(row["node_id"], row["pid"]) for row in self._list("workers", is_alive="true")}
        return [
            *(
                f"actor {row['class_name']} ({row['state']})"
                for row in actors
                if row["state"] != "DEAD" and row["class_name"] not in _CLUSTER_WIDE
            ),
            *(
                f"process {row['pid']} of actor {row['class_name']}"
                for row in actors
                if row["state"] == "DEAD"
                and row["class_name"] not in _CLUSTER_WIDE
                and (row["node_id"], row["pid"]) in alive
            ),
            *(
                f"placement group {row['placement_group_id']} ({row['state']})"
                for row in groups
                if row["state"] != "REMOVED"
            ),
        ]

    def _details(self, ray_job_id: str) -> dict[str, Any] | None:
        answer = self._call("GET", f"/api/jobs/{ray_job_id}")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        details = _object(answer)
        if details.get("status") not in _KNOWN_STATES:
            raise RayUnavailable(f"Ray says something unknown of job {ray_job_id}: {_said(answer)}")
        return details

    def _list(self, kind: str, **equals: str) -> list[dict[str, Any]]:
        """List rows of Ray's State API whose fields have the given values."""
        query: dict[str, Any] = {
            "limit": _LIST_LIMIT,
            "detail": 1,
            "filter_keys": list(equals),
            "filter_predicates": ["="] * len(equals),
            "filter_values": list(equals.values()),
        }
        body = _object(self._call("GET", f"/api/v0/{kind}", params=query))
        try:
            return list(body["data"]["result"]["result"])
        except (KeyError, TypeError) as error:
            raise RayUnavailable(f"Ray cannot list its {kind}: {body.get('msg')}") from error

    def _ship(self, package: Package) -> str:
        """Upload the archive unless Ray holds the same content already, close it, and return its URI."""
        with package.file:
            path = f"/api/packages/gcs/{package.name}"
            if self._call("GET", path).status_code == httpx.codes.NOT_FOUND:
                answer = self._call("PUT", path, content=package.file, timeout=UPLOAD_SECONDS)
                if answer.is_error:
                    raise RayUnavailable(f"Ray did not take an archive: {_said(answer)}")
        return f"gcs://{package.name}"

    def _call(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        """Make one call; every way not to get Ray's answer becomes RayUnavailable."""
        try:
            answer = self._client.request(method, path, headers=self._headers(), **arguments)
        except httpx.HTTPError as error:
            raise RayUnavailable(
                f"Ray does not answer at {self._address}: {error or type(error).__name__}"
            ) from error
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise RayUnavailable(f"Ray at {self._address} refuses the token of {self._token_path}")
        return answer

    def _headers(self) -> Mapping[str, str]:
        if self._token_path is None:
            return {}
        try:
            token = self._token_path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise RayUnavailable(f"Ray's token cannot be read: {error}") from error
        return {"Authorization": f"Bearer {token}"}


def _node(row: Mapping[str, Any]) -> Node:
    resources = row.get("resources_total") or {}
    return Node(
        node_id=str(row["node_id"]),
        address=str(row["node_ip"]),
        cpus=int(resources.get("CPU", 0)),
        gpus=int(resources.get("GPU", 0)),
        is_head=bool(row["is_head_node"]),
    )


def _object(answer: httpx.Response) -> dict[str, Any]:
    try:
        body = answer.raise_for_status().json()
    except (httpx.HTTPStatusError, ValueError) as error:
        raise RayUnavailable(
            f"Ray answers {answer.status_code} to {answer.url.path}: {_said(answer)}"
        ) from error
    if not isinstance(body, dict):
        raise RayUnavailable(f"Ray answers something unknown to {answer.url.path}: {_said(answer)}")
    return body


def _shortened(message: str) -> str:
    """Keep both ends: Ray says first what happened, and quotes up to 20,000 characters of the driver's log after it."""
    half = _MESSAGE_CHARS // 2
    return message if len(message) <= _MESSAGE_CHARS else f"{message[:half]}\n...\n{message[-half:]}"


def _said(answer: httpx.Response) -> str:
    """The last line of an error: Ray answers with a whole traceback."""
    lines = answer.text.strip().splitlines()
    return lines[-1][:_MESSAGE_CHARS] if lines else f"status {answer.status_code}"
