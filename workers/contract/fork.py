"""Forks: a job that begins with a checkpoint of another one. What it may change is listed here; the rest is refused. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from workers.contract.config import TrainingConfig
from workers.contract.manifest import CheckpointId

# Key, with all below it -> what follows from another value.
MAY_CHANGE: Final[Mapping[str, str]] = {
    "train.steps": "steps count on from the checkpoint, so it ends after this many in all",
    "train.optimizer.lr": "from the next step on",
    "train.optimizer.weight_decay": "from the next step on",
    "train.optimizer.betas": "moments go on from what they are",
    "train.optimizer.eps": "from the next step on",
    "train.schedule": "it is a function of the step and of `train.steps`",
    "train.grad_clip": "from the next step on",
    "train.batch.micro": "nothing but memory and speed",
    "train.batch.global_sequences": "the order of samples begins anew",
    "train.seed": "the order of samples begins anew",
    "train.precision": "weights and moments are stored in fp32 (fp16 and its loss scale stay, or stay out)",
    "train.log_every_steps": "nothing that is trained",
    "data": "the order of samples begins anew",
    "validation": "what is held out is another part, so the order of samples begins anew",
    "model.token_env": "nothing that is trained",
    "engine": "a checkpoint knows no engine",
    "scaling": "a checkpoint knows no number of workers",
    "checkpoint": "the fork saves for itself",
    "failure": "nothing that is trained",
    "runtime": "nothing that a checkpoint knows",
    "export": "nothing that is trained",
}

_STEP: Final = re.compile(r"\d+")
_NOT_SET: Final = "not set"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One key that the two jobs have with different values."""

    path: str
    old: Any
    new: Any

    @property
    def is_allowed(self) -> bool:
        """Whether a fork may change it."""
        if "fp16" in (self.old, self.new) and self.path == "train.precision.params":
            return False  # the loss scale is part of the state
        if "tokenizer" in self.path.split(".") and _NOT_SET not in (self.old, self.new):
            return False  # ids would mean another text
        return any(self.path == key or self.path.startswith(f"{key}.") for key in MAY_CHANGE)


def refused(old: TrainingConfig, new: TrainingConfig) -> tuple[Change, ...]:
    """Return what a fork of `old` may not change and `new` does, in the order of the keys."""
    return tuple(change for change in changes(old, new) if not change.is_allowed)


def changes(old: TrainingConfig, new: TrainingConfig) -> tuple[Change, ...]:
    """Return every key with another value, by its dotted path."""
    before, after = (dict(_leaves(config.model_dump(mode="json"))) for config in (old, new))
    paths = [*before, *(path for path in after if path not in before)]
    pairs = ((path, before.get(path, _NOT_SET), after.get(path, _NOT_SET)) for path in paths)
    return tuple(Change(path=path, old=a, new=b) for path, a, b in pairs if a != b)


def _leaves(value: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            yield from _leaves(inner, (*path, key))
        else:
            yield ".".join((*path, key)), inner


def split_reference(text: str) -> tuple[str, str | None]:
    """Read `RUN` or `RUN@STEP` (or `RUN@<name of a checkpoint>`): the run, and which checkpoint; None: the newest."""
    run, separator, wanted = text.rpartition("@")
    if separator and run and (_STEP.fullmatch(wanted) or CheckpointId.parse(wanted)):
        return run, wanted
    return text, None
