"""First values of a module's parameters: whole on the CPU, one at a time, let go of once an engine laid it out.

So no rank holds a full copy because it shards one, and no device ever sees a whole model.
"""

import torch
import xxhash
from torch import nn

from workers.errors import ConfigError
from workers.models.task import DeferredTask, Task, is_base
from workers.world import World


class InitialWeights:
    """Takes the values out of a module that a task built, and hands out each of them once.

    The module is left on the meta device, its parameters still the same objects, with shape, dtype and `requires_grad`
    that they are trained with: fp32 if trained, else their own.
    """

    def __init__(self, task: Task, module: nn.Module, *, will_load: bool) -> None:
        """Local, keeps the memory of what `task.build` filled. Raises ConfigError for what nobody can fill.

        With `will_load` a checkpoint follows, and weights that come by name are zeros: nobody makes or reads them anew
        each time that a job goes on, but those that the checkpoint does not hold.
        """
        self._task = task
        self._will_load = will_load
        self._built: dict[str, torch.Tensor] = {}
        self._digest = xxhash.xxh3_64()
        for name, buffer in module.named_buffers():
            if buffer.is_meta:
                raise ConfigError(
                    f"build() left the buffer {name} on the meta device: its value is lost there; make it real"
                )
            self._add_to_digest(name, buffer)
        for name, parameter in module.named_parameters():
            if not parameter.is_meta:
                self._built[name] = parameter.detach()
            elif not isinstance(task, DeferredTask):
                raise ConfigError(
                    f"build() left the parameter {name} on the meta device, and the task has no initial_weight(name)"
                )
            fill(parameter, torch.empty(parameter.shape, dtype=_trained_dtype(parameter), device="meta"))

    def take(self, name: str, parameter: nn.Parameter) -> torch.Tensor:
        """Return the value of `parameter`, called `name`: whole, on the CPU, in its dtype. Once each, not collective.

        Raises ConfigError where the task's value has another shape.
        """
        if name in self._built:
            value = self._built.pop(name)
        elif self._will_load and not is_base(self._task, name):
            return torch.zeros(
                parameter.shape, dtype=parameter.dtype
            )  # pages that nobody touches are not there
        else:
            assert isinstance(self._task, DeferredTask)
            value = self._task.initial_weight(name).detach()
        if value.shape != parameter.shape:
            raise ConfigError(
                f"initial_weight({name!r}) has shape {list(value.shape)}, not {list(parameter.shape)}"
            )
        self._add_to_digest(name, value)
        return value.to(parameter.dtype).contiguous()

    def check_equal(self, world: World) -> None:
        """Refuse ranks that were given different values: sharded, they would mix into a model that nobody built.

        Every rank calls it, once it took all; collective. Raises ConfigError with the ranks.
        """
        digests = [row[0] for row in world.gather([self._digest.intdigest() >> 1])]
        if different := [rank for rank, value in enumerate(digests) if value != digests[0]]:
            raise ConfigError(
                f"ranks {different} built other initial weights than rank 0: build() may draw from the seeded global "
                "generators of torch, numpy and random only"
            )

    def _add_to_digest(self, name: str, tensor: torch.Tensor) -> None:
        self._digest.update(name.encode())
        if tensor.numel() > 0:
            self._digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


def fill(parameter: nn.Parameter, value: torch.Tensor) -> None:
    """Make `parameter` hold `value`, on any device, in any dtype. It stays the same object, so ties and references stay."""
    torch.utils.swap_tensors(  # type: ignore[no-untyped-call]
        parameter, nn.Parameter(value, requires_grad=parameter.requires_grad)
    )


def _trained_dtype(parameter: nn.Parameter) -> torch.dtype:
    return torch.float32 if parameter.requires_grad else parameter.dtype
