"""Which keys a job file knows, read from the models, and which of them somebody may have meant."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel

from orchestrator.spec.model import JobSpec

KeyPath = tuple[str, ...]
_MEANT: Final[Mapping[str, str]] = {
    # what other systems call it -> our path
    "learning_rate": "train.optimizer.lr",
    "max_steps": "train.steps",
    "batch_size": "train.batch.global_sequences",
    "global_batch_size": "train.batch.global_sequences",
    "micro_batch_size": "train.batch.micro",
    "gradient_accumulation_steps": "train.batch.micro",
    "strategy": "engine.kind",
    "stage": "engine.zero_stage",
    "workers": "scaling.num_workers",
    "nodes": "scaling.num_workers",
    "gpus": "scaling.gpus_per_worker",
    "save_steps": "checkpoint.every_steps",
    "output_dir": "checkpoint.storage_path",
    "retries": "failure.max_failures",
}


@cache
def known_keys() -> Mapping[KeyPath, tuple[str, ...]]:
    """Every place that takes keys of ours, with the keys it takes; a union's members are taken together."""
    found: dict[KeyPath, list[str]] = {}
    for path, key in _walk(JobSpec, ()):
        keys = found.setdefault(path, [])
        if key not in keys:
            keys.append(key)
    return {path: tuple(keys) for path, keys in found.items()}


def _walk(model: type[BaseModel], path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    for name, info in model.model_fields.items():
        yield path, name
        for member in _models(info.annotation):
            yield from _walk(member, (*path, name))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in an annotation; what a free mapping holds is the user's."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Annotated, Union, UnionType):
        for part in get_args(annotation):
            yield from _models(part)


def meant_key(key: str, *, parent: KeyPath, taken: Mapping[str, Any]) -> str:
    """Say what to write instead of the unknown `key` under `parent`, in one sentence. `taken` is what is there already."""
    keys = known_keys().get(parent, ())
    near = get_close_matches(key, [k for k in keys if k not in taken], n=1, cutoff=0.72)
    if near:
        return f"did you mean `{near[0]}`?"
    home = _home_of(key)
    if home is not None:
        return home
    free = ", ".join(f"`{known}`" for known in keys)
    where = f"`{'.'.join(parent)}` takes" if parent else "the keys are"
    return f"{where} {free}" if free else "leave it out"


def _home_of(key: str) -> str | None:
    """Find the place that the key belongs to, exactly or nearly."""
    places = {name: [path for path, names in known_keys().items() if name in names] for name in _all_names()}
    if key in places:
        under = " or ".join(f"`{'.'.join(path)}`" for path in places[key] if path)
        return f"`{key}` belongs under {under}" if under else f"`{key}` belongs at the top level"
    near = get_close_matches(key, [*places, *_MEANT], n=1, cutoff=0.8)
    if not near:
        return None
    path = _MEANT.get(near[0]) or ".".join((*places[near[0]][0], near[0]))
    return f"did you mean `{path}`?"


def _all_names() -> set[str]:
    return {name for names in known_keys().values() for name in names}
