"""The two bases of every contract value: one for what a person writes, one for what programs exchange."""

from typing import Self

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Text that a person wrote: an unknown key is an error, and nothing is coerced across kinds."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Message(BaseModel):
    """What one program tells another: frozen, and tolerant of keys that a newer peer adds."""

    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="strings")

    def to_json(self) -> str:
        """Return the message as one line of JSON."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parse what `to_json` wrote; raises pydantic's ValidationError on anything else."""
        return cls.model_validate_json(text)
