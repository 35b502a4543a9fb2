"""Where storage lies: a path, or the URL of an object store. Names and rules only: nothing here opens anything."""

import re
from collections.abc import Mapping
from typing import Final

# Scheme -> the package that speaks it. Only what is tested is here: any other fsspec URL is refused by name, above
# all those that lead back to this machine or through another one (`file:`, `simplecache::`, `http:`).
SCHEMES: Final[Mapping[str, str]] = {"s3": "s3fs"}

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_SEGMENT: Final = re.compile(
    r"[A-Za-z0-9!_.*'()=+@,-]+"
)  # what every store takes as it is, and no URL escapes


def is_url(location: str) -> bool:
    """Whether this names something else than a path."""
    return _SCHEME.match(location) is not None


def url_problem(url: str) -> str | None:
    """Say why a URL cannot be storage: `scheme://bucket/prefix`, plain names only; None where it can."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        known = ", ".join(f"{known}://bucket/prefix" for known in SCHEMES)
        return f"is no storage that this version knows: use a path that all nodes mount, or {known}"
    bucket, *segments = rest.removesuffix("/").split("/")
    if not _BUCKET.fullmatch(bucket):
        return f"does not name a bucket: {scheme}://bucket/prefix"
    odd = next((s for s in segments if not _SEGMENT.fullmatch(s) or set(s) == {"."}), None)
    if odd is not None:
        return f"holds {odd!r}, which is no plain name"
    return None


def join(location: str, *names: str) -> str:
    """Return the place of `names` below a path or URL."""
    return "/".join((location.rstrip("/"), *names))


def is_below(url: str, root: str) -> bool:
    """Whether a URL is `root` or lies below it, name by name: `s3://b/runs-2` is not below `s3://b/runs`."""
    return f"{url.rstrip('/')}/".startswith(f"{root.rstrip('/')}/")
