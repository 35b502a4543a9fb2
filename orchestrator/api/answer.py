"""A view as an HTTP answer, written by its own model."""

from collections.abc import Mapping

from fastapi import Response

from workers.contract.base import Message


def answer(view: Message, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Write a view that may hold NaN or infinity, which FastAPI's own serializer (0.165) turns into null.

    The route names the view as its `response_model`, for the description of the API.
    """
    return Response(
        view.to_json(), status_code=status, media_type="application/json", headers=dict(headers or {})
    )
