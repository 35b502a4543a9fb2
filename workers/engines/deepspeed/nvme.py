"""State that lies in files: held in memory for as long as somebody looks at it. Private attributes of DeepSpeed 0.19.8.

A checkpoint reads and writes tensors in place. So what lies in files is lent as copies in host memory, and what a load
wrote into them goes back into the files.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn

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

    def sizes(self) -> dict[str, int]:
        """Return the bytes that each file of states has to hold, by path."""
        if not self._groups:
            return {}
        swapper = self._zero.optimizer_swapper
        return {
            path: swapper._io_aligned_numel(info.numel()) * swapper.swap_element_size
            for info in swapper.swap_params_info.values()
            for path in info.get_swap_paths()
        }

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


def param_sizes(parameters: Iterable[nn.Parameter]) -> dict[str, int]:
    """Return the bytes that the file of each parameter has to hold, by path; none for those without one."""
    sizes = {}
    for parameter in parameters:
        swapper: Any = getattr(parameter, "nvme_swapper", None)
        if swapper is not None and parameter.ds_tensor.final_location == "nvme":  # type: ignore[attr-defined]
            numel = swapper._io_aligned_numel(swapper.param_id_to_numel[parameter.ds_id])  # type: ignore[attr-defined]
            sizes[swapper.get_path(parameter)] = numel * swapper.swap_element_size
    return sizes


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
