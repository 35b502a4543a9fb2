"""Who calls: the admin with the service's token, or a driver with its generation's report-only token."""

import secrets
from typing import Annotated

from fastapi import Depends, HTTPException
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from orchestrator.api.door import DoorDep

_bearer = HTTPBearer(description="The token of the state directory, or a generation's report-only token")
Credentials = Annotated[HTTPAuthorizationCredentials, Depends(_bearer)]


def is_same(given: str, expected: str) -> bool:
    """Compare two tokens in a time that does not tell where they differ."""
    return secrets.compare_digest(given.encode(), expected.encode())


def require_admin(credentials: Credentials, door: DoorDep) -> None:
    """Let the admin token through. A report-only token is no token here. Raises 401."""
    if not is_same(credentials.credentials, door.admin_token):
        raise HTTPException(401, "the token is not this service's", headers={"WWW-Authenticate": "Bearer"})


def bearer_token(credentials: Credentials) -> str:
    """Return the token of a report; the service compares it with the generation's."""
    return credentials.credentials


AdminDep = Depends(require_admin)
ReportTokenDep = Annotated[str, Depends(bearer_token)]
