"""The database: SQLAlchemy Core, SQLite (WAL) by default, PostgreSQL by URL. All SQL lies in this package."""


class Store:
    """One database. Thread-safe."""

    @classmethod
    def open(cls, url: str) -> "Store":
        """Connect and create what is missing. Raises StoreError."""
        raise NotImplementedError

    def close(self) -> None:
        """Close every connection."""
