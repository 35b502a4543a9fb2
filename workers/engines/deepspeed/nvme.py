"""State that lies in files: held in memory for as long as somebody looks at it. Private attributes of DeepSpeed 0.19.8.

A checkpoint reads and writes tensors in place. So what lies in files is lent as copies in host memory, and what a load
wrote into them goes back into the files.
"""

import ctypes
import mmap
import os
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from workers.errors import ConfigError
from workers.scratch import claim

MASTER: Final = "master"  # beside the names of an optimizer's moments


class FileStates:
    """The flat partitions of stage 3 whose masters and moments lie in files; none in other stages."""

    def __init__(self, zero: Any, optimizer: torch.optim.Optimizer) -> None:
        """Take over `zero`, a DeepSpeedZeroOptimizer_Stage3, or what has no files."""
        self._zero, self._optimizer = zero, optimizer
        self._groups: dict[torch.Tensor, int] = {}
        self._lent: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
        if getattr(zero, "swap_optimizer", False):
            flats = enumerate(zero.fp32_partitioned_groups_flat)
            self._groups = {flat: i for i, flat in flats if zero._swappable_optimizer_subgroup(i)}
            zero.optimizer_swapper.swap_out_gradients = self._keep_gradients

    @contextmanager
    def opened(self, flat: torch.Tensor) -> Iterator[None]:
        """Hold a partition and its moments in memory; what is changed within stays so. Nothing to do without files."""
        group = self._groups.get(flat)
        if group is not None:
            self._zero._optimizer_states_and_gradient_swap_in(group)
        yield
        if group is not None:
            self._zero._optimizer_states_and_gradient_swap_out(group)

    def values(self, flat: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """Return master and moments: the tensors themselves, or copies of what lies in files, the same until `forget`."""
        if flat not in self._groups:
            return self._live(flat)
        if flat not in self._lent:
            with self.opened(flat), torch.no_grad():
                self._lent[flat] = {name: value.clone() for name, value in self._live(flat).items()}
        return self._lent[flat]

    @torch.no_grad()
    def take_back(self) -> None:
        """Write what was lent into the files again."""
        for flat, lent in self._lent.items():
            with self.opened(flat):
                for name, value in self._live(flat).items():
                    value.copy_(lent[name])
        self.forget()

    def forget(self) -> None:
        """Let go of what was lent: what is in the files is newer, or the same."""
        self._lent.clear()

    def buffers(self) -> list[torch.Tensor]:
        """Return the host memory through which state goes to files and comes back."""
        return list(self._zero.optimizer_swapper.swap_buffer_manager.all_buffers) if self._groups else []

    def _keep_gradients(
        self,
        parameter: torch.Tensor,
        gradient_offsets: Sequence[int],
        gradient_tensors: Sequence[torch.Tensor],
    ) -> None:
        """Stand in for what writes gradients into files, and reads each back to where it belongs in the partition.

        That place may be any address, the kernel takes aligned ones only, and DeepSpeed 0.19.8 does not look at what it
        answers: gradients came back wrong, silently. They are in host memory anyway.
        """
        swapper: Any = self._zero.optimizer_swapper
        kept = swapper.swap_params_info[swapper.parameter_id(parameter)].unswapped_gradients
        kept.update(zip(gradient_offsets, (gradient.cpu() for gradient in gradient_tensors), strict=True))

    def _live(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        return {MASTER: flat.detach(), **self._optimizer.state[flat]}


@contextmanager
def part_in_memory(parameter: nn.Parameter) -> Iterator[torch.Tensor]:
    """Give this rank's part of a parameter that stage 3 has cut, flat, with its padding; one of a file is written back."""
    part: Any = parameter.ds_tensor  # type: ignore[attr-defined]
    swapper: Any = parameter.nvme_swapper  # type: ignore[attr-defined]
    is_away = part.status.name == "NOT_AVAILABLE"
    if is_away:
        swapper.swap_in([parameter], async_op=False)
    yield part.detach().view(-1)
    if is_away:
        swapper.swap_out_and_release([parameter])


def read_each_once(swapper: Any) -> None:
    """Let `swapper` read a parameter once that it is asked for twice: DeepSpeed 0.19.8 does so in fetching ahead.

    It then means one that is used twice, like a tied one, or one of a layer that is computed again.
    """
    swap_in: Callable[..., None] = swapper.swap_in

    def swap_in_once(params: Sequence[nn.Parameter], *args: Any, **options: Any) -> None:
        swap_in(list(dict.fromkeys(params)), *args, **options)

    swapper.swap_in = swap_in_once


def copy_on_one_rank(
    gather: Callable[[Sequence[nn.Parameter]], Any],
) -> Callable[[Sequence[nn.Parameter]], Any]:
    """Return `gather`, which takes a part for the whole where one rank has all, so that it copies what came from a file.

    On a CPU DeepSpeed 0.19.8 lets forward read the buffer itself, and what backward saved of it changed with the buffer.
    """

    def gather_copies(parameters: Sequence[nn.Parameter]) -> Any:
        handle = gather(parameters)
        for parameter in parameters:
            part: Any = parameter.ds_tensor  # type: ignore[attr-defined]
            if part.final_location == "nvme" and parameter.data_ptr() == part.data_ptr():
                parameter.data = parameter.data.clone()
        return handle

    return gather_copies


def scratch_directory(nvme_path: str) -> Path:
    """Return a directory for this rank's files, which go when it ends. Raises ConfigError where they cannot lie there."""
    try:
        directory = claim(Path(nvme_path))
    except OSError as error:
        raise ConfigError(f"engine.offload.nvme_path {nvme_path}: {error.strerror or error}") from error
    probe = directory / "probe"
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_RDWR | os.O_DIRECT))
    except OSError as error:
        raise ConfigError(
            f"engine.offload.nvme_path {nvme_path}: its file system has no direct access (O_DIRECT: {error.strerror}); "
            "name a directory on a local disk"
        ) from error
    finally:
        probe.unlink(missing_ok=True)
    return directory


def check_lockable(num_bytes: int) -> None:
    """Raise ConfigError where this process may not lock `num_bytes`: DeepSpeed would die of it without a word."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    libc = ctypes.CDLL(None, use_errno=True)
    with mmap.mmap(-1, max(num_bytes, mmap.PAGESIZE)) as memory:
        view = ctypes.c_char.from_buffer(memory)
        address, size = ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(len(memory))
        is_locked = libc.mlock(address, size) == 0
        if is_locked:
            libc.munlock(address, size)
        del view
    if not is_locked:
        raise ConfigError(
            f"engine.offload: nvme locks {num_bytes / 1e6:.0f} MB of memory for its buffers, and the limit is "
            f"{hard / 1e6:.0f} MB; raise it on the nodes (`ulimit -l`, LimitMEMLOCK, or --ulimit memlock=-1)"
        )
