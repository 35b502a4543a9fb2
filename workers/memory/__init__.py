"""Where a rank's bytes are: so far the static categories, exact; activations and communication come with the ledger."""

from workers.memory.static import resident_bytes, static_bytes, storage_bytes

__all__ = ["resident_bytes", "static_bytes", "storage_bytes"]
