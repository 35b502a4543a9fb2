"""`engine.raw`: a DeepSpeed configuration that people have, held against the job file. Pure; knows keys, never DeepSpeed.

What a job file says as well has to agree with it, or be `"auto"`; what only tunes ZeRO is passed on; the rest is named.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

# DeepSpeed's place -> the job file's place with the same meaning.
SAME: Final[Mapping[str, str]] = {
    "train_batch_size": "train.batch.global_sequences",
    "train_micro_batch_size_per_gpu": "train.batch.micro",
    "gradient_clipping": "train.grad_clip",
    "optimizer.params.lr": "train.optimizer.lr",
    "optimizer.params.betas": "train.optimizer.betas",
    "optimizer.params.eps": "train.optimizer.eps",
    "optimizer.params.weight_decay": "train.optimizer.weight_decay",
    "zero_optimization.stage": "engine.zero_stage",
    "zero_optimization.offload_optimizer.device": "engine.offload.optimizer",
    "zero_optimization.offload_optimizer.nvme_path": "engine.offload.nvme_path",
    "zero_optimization.offload_param.device": "engine.offload.params",
    "zero_optimization.offload_param.nvme_path": "engine.offload.nvme_path",
    "zero_optimization.zero_hpz_partition_size": "engine.shard_group_size",
    "bf16.enabled": "train.precision.params",
    "fp16.enabled": "train.precision.params",
}
# What tunes ZeRO and nothing else: passed on as it is.
TUNES: Final = frozenset(
    {
        "allgather_bucket_size",
        "allgather_partitions",
        "contiguous_gradients",
        "overlap_comm",
        "reduce_bucket_size",
        "reduce_scatter",
        "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
        "stage3_param_persistence_threshold",
        "stage3_prefetch_bucket_size",
        "sub_group_size",
    }
)
# What has a meaning that is ours here: derived, or done by us. Taken without effect, and said so.
OURS: Final[Mapping[str, str]] = {
    "activation_checkpointing": "say engine.activation_checkpointing",
    "fp16": "say train.precision.loss_scale",
    "gradient_accumulation_steps": "it follows from train.batch and the number of workers",
    "optimizer": "say train.optimizer",
    "scheduler": "say train.schedule",
    "steps_per_print": "samples are told once a second",
    "wall_clock_breakdown": "samples tell it",
    "zero_allow_untested_optimizer": "it is set",
    "zero_force_ds_cpu_optimizer": "it is set",
    "zero_optimization.round_robin_gradients": "places of parameters have to stay",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": "a checkpoint needs no gathered model",
}
OLD: Final[Mapping[str, str]] = {
    "bfloat16": "bf16",
    "zero_optimization.cpu_offload": "zero_optimization.offload_optimizer",
    "zero_optimization.cpu_offload_params": "zero_optimization.offload_param",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": (
        "zero_optimization.stage3_gather_16bit_weights_on_model_save"
    ),
}
_BRANCHES: Final = frozenset(
    {
        "bf16",
        "fp16",
        "optimizer",
        "optimizer.params",
        "zero_optimization",
        "zero_optimization.offload_optimizer",
        "zero_optimization.offload_param",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawReading:
    """What a raw configuration comes to."""

    tuning: Mapping[str, Any]  # for `zero_optimization`
    problems: tuple[str, ...]  # why the job is refused
    warnings: tuple[str, ...]  # what was understood, but differently from how it is written


def read_raw(raw: Mapping[str, Any], job: Mapping[str, Any]) -> RawReading:
    """Hold `raw` against `job`: the job file's values by place, defaults filled in."""
    tuning: dict[str, Any] = {}
    problems: list[str] = []
    warnings: list[str] = []
    for place, value in _leaves(raw, ""):
        now = _renamed(place)
        if now != place:
            warnings.append(f"engine.raw.{place} is an old spelling of {now}")
            now, value = _modern(now, value)
        section, _, key = now.rpartition(".")
        if now in SAME:
            problems += _disagreement(now, value, job)
        elif section == "zero_optimization" and key in TUNES:
            if value != "auto":
                tuning[key] = value
        elif (why := _ours(now)) is not None:
            warnings.append(f"engine.raw.{now} has no effect: {why}")
        else:
            problems.append(_unknown(now))
    return RawReading(tuning=tuning, problems=tuple(problems), warnings=tuple(warnings))


def _leaves(section: Mapping[str, Any], place: str) -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        path = f"{place}.{key}" if place else str(key)
        if isinstance(value, Mapping) and _renamed(path) in _BRANCHES:
            yield from _leaves(value, path)
        else:
            yield path, value


def _renamed(place: str) -> str:
    for old, new in OLD.items():
        if place == old or place.startswith(f"{old}."):
            return new + place.removeprefix(old)
    return place


def _modern(place: str, value: Any) -> tuple[str, Any]:
    """Return what a flag of old, `cpu_offload: true`, is today."""
    if place in ("zero_optimization.offload_optimizer", "zero_optimization.offload_param"):
        return f"{place}.device", "cpu" if value is True else "none"
    return place, value


def _disagreement(place: str, value: Any, job: Mapping[str, Any]) -> list[str]:
    home = SAME[place]
    said = job.get(home)
    if value == "auto" or _agree(place, value, said):
        return []
    return [
        f"engine.raw.{place} is {value!r} and {home} is {said!r}: they are one thing; make them agree, "
        'or write "auto" in raw'
    ]


def _agree(place: str, value: Any, said: Any) -> bool:
    if place in ("bf16.enabled", "fp16.enabled"):
        return bool(value) is bool(said == place.partition(".")[0])
    if place == "gradient_clipping":
        return bool(float(value) == float(said or 0.0))
    if place == "train_micro_batch_size_per_gpu" and said == "auto":
        return False
    if isinstance(said, tuple | list):
        return isinstance(value, tuple | list) and bool(list(value) == list(said))
    if place.endswith(".device"):
        return bool(value == said or (value is None and said == "none"))
    return bool(value == said)


def _ours(place: str) -> str | None:
    return next((why for key, why in OURS.items() if place == key or place.startswith(f"{key}.")), None)


def _unknown(place: str) -> str:
    known = [*SAME, *OURS, *(f"zero_optimization.{key}" for key in sorted(TUNES))]
    near = get_close_matches(place, known, n=1, cutoff=0.7)
    return f"engine.raw.{place} is not a key that is known here" + (
        f" (did you mean `{near[0]}`?)" if near else ""
    )
