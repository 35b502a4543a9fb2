"""`engine` of a job file: who shards what, and where it lies."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from workers.contract.base import Strict
from workers.contract.numbers import NonNegativeInt, PositiveInt


class Prefetch(Strict):
    """Layers fetched ahead in each direction; backward 1 is what FSDP1 called BACKWARD_PRE."""

    forward: NonNegativeInt = 1
    backward: NonNegativeInt = 1


class Offload(Strict):
    """Where state lies that the device has no room for: `cpu` is host memory, `nvme` files below `nvme_path`."""

    optimizer: Literal["none", "cpu", "nvme"] = "none"
    params: Literal["none", "cpu", "nvme"] = "none"
    nvme_path: str | None = None  # a directory on a local disk of every node, absolute

    @model_validator(mode="after")
    def _nvme_has_a_path(self) -> Self:
        if self.needs_files and self.nvme_path is None:
            raise ValueError(
                "offload to nvme needs nvme_path: name a directory on a local disk of every node"
            )
        if self.nvme_path is not None and not self.nvme_path.startswith("/"):
            raise ValueError(f"nvme_path {self.nvme_path!r} is not absolute: each node resolves it by itself")
        return self

    @property
    def is_none(self) -> bool:
        """True where everything stays on the device."""
        return self.optimizer == self.params == "none"

    @property
    def needs_files(self) -> bool:
        """True where state goes to files."""
        return "nvme" in (self.optimizer, self.params)


class Engine(Strict):
    """Who shards what. Stage 0 is `ddp`; stages 2 and 3 are `fsdp`; DeepSpeed has all four."""

    kind: Literal["ddp", "fsdp", "deepspeed"] = "fsdp"
    zero_stage: Annotated[int, Field(ge=0, le=3, strict=True)] | None = None  # None: 0 for ddp, else 3
    offload: Offload = Offload()
    prefetch: Prefetch = Prefetch()
    # Stage 3 gathers within groups of this many ranks. fsdp: hybrid shard, replicated between the groups.
    # deepspeed: hpZ, a second copy of the shards in each group. None: all ranks are one group.
    shard_group_size: PositiveInt | None = None
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    compile: bool = False
    raw: Mapping[str, Any] | None = None  # a DeepSpeed configuration; what the job file says too must agree

    @property
    def stage(self) -> int:
        """The ZeRO stage in force, the default of the kind filled in."""
        return (
            self.zero_stage
            if self.zero_stage is not None
            else {"ddp": 0, "fsdp": 3, "deepspeed": 3}[self.kind]
        )

    @model_validator(mode="after")
    def _stage_fits_kind(self) -> Self:
        if self.kind == "ddp" and self.stage != 0:
            raise ValueError(f"zero_stage {self.stage} needs `kind: fsdp`; ddp shards nothing and is stage 0")
        if self.kind == "fsdp" and self.stage == 0:
            raise ValueError("zero_stage 0 shards nothing: use `kind: ddp`")
        if self.kind == "fsdp" and self.stage == 1:
            raise ValueError(
                "zero_stage 1 shards optimizer state only, and fsdp has no stage 1: use 2, or 3 for the least memory, "
                "or `kind: deepspeed`"
            )
        return self

    @model_validator(mode="after")
    def _parts_fit_kind(self) -> Self:
        """Refuse what the engine cannot do, with what can."""
        if self.raw is not None and self.kind != "deepspeed":
            raise ValueError(f"raw is a DeepSpeed configuration: use `kind: deepspeed`, not {self.kind}")
        if self.kind == "ddp" and not self.offload.is_none:
            raise ValueError(
                "offload needs an engine that shards: use `kind: fsdp` or `kind: deepspeed`, not ddp"
            )
        if self.kind == "fsdp":
            self._check_fsdp_offload()
        if self.kind == "deepspeed":
            self._check_deepspeed_offload()
        if self.shard_group_size is not None and self.stage != 3:
            raise ValueError(f"shard_group_size needs zero_stage 3: stage {self.stage} gathers nothing")
        return self

    def _check_fsdp_offload(self) -> None:
        if "nvme" in (self.offload.optimizer, self.offload.params):
            raise ValueError("offload to nvme is DeepSpeed's: use `kind: deepspeed`, or cpu under fsdp")
        if self.offload.optimizer != self.offload.params:
            raise ValueError(
                "offload under fsdp moves parameters and optimizer state together: say cpu for both, "
                "or use `kind: deepspeed`"
            )
        if self.offload.params == "cpu" and self.stage != 3:
            raise ValueError(f"offload under fsdp needs zero_stage 3, not {self.stage}")

    def _check_deepspeed_offload(self) -> None:
        if self.offload.params != "none" and self.stage != 3:
            raise ValueError(
                f"offload.params needs zero_stage 3, not {self.stage}: offload the optimizer alone"
            )
        if self.offload.optimizer != "none" and self.stage == 0:
            raise ValueError("offload.optimizer needs zero_stage 1, 2 or 3: stage 0 shards nothing")
        if self.offload.optimizer == "nvme" and self.stage != 3:
            raise ValueError(f"offload.optimizer to nvme needs zero_stage 3, not {self.stage}: use cpu")
