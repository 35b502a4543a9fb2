"""The optimizer that DeepSpeed calls on its flat partitions, parameter by parameter.

A partition is many parameters end to end. Updated as one tensor, all of them would share a step count and the weight
decay, and one that no rank used in a step would decay all the same. So each step works on the fragments: what each
parameter has in the partition, with its own count; those that were not used are left alone, as in one process.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from workers.contract.config import Optimizer as OptimizerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """Elements [start, start + length) of a parameter, which lie at `offset` of this rank's flat partition."""

    name: str
    shape: tuple[int, ...]
    start: int
    length: int
    offset: int


class FragmentOptimizer(torch.optim.Optimizer):
    """AdamW or SGD over fragments. Until `bind` says which there are, a step only makes state."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        empty: Mapping[str, nn.Parameter],
        config: OptimizerConfig,
    ) -> None:
        """Train `parameters`; of those without elements only the steps are counted."""
        super().__init__(list(parameters.values()), {"lr": config.lr})
        self._config = config
        self._fragments: dict[torch.Tensor, Sequence[Fragment]] = {}
        self.factor = 1.0  # what gradients are multiplied by: clipping, and the loss scale undone
        self.used: frozenset[str] = frozenset()  # parameters that some rank used in this step
        self.steps = {
            name: torch.zeros((), dtype=torch.float32, device=parameter.device)
            for name, parameter in (*parameters.items(), *empty.items())
        }

    @property
    def moments(self) -> tuple[str, ...]:
        """Names of the state that lies as the parameter does."""
        if self._config.name == "adamw":
            return ("exp_avg", "exp_avg_sq")
        return ("momentum_buffer",) if self._config.betas[0] > 0 else ()

    def bind(self, fragments: Mapping[torch.Tensor, Sequence[Fragment]]) -> None:
        """Say what lies in each flat partition."""
        self._fragments = dict(fragments)

    def make_state(self, flat: torch.Tensor) -> None:
        """Make the state of a partition where there is none yet."""
        state = self.state[flat]
        for moment in self.moments:
            if moment not in state:
                state[moment] = torch.zeros_like(flat, requires_grad=False)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the fragments of every partition that has a gradient. DeepSpeed calls it once for each partition."""
        assert closure is None
        for group in self.param_groups:
            for flat in group["params"]:
                self.make_state(flat)
                if flat.grad is not None and flat in self._fragments:
                    self._update(flat, group["lr"])

    def _update(self, flat: torch.Tensor, learning_rate: float) -> None:
        found = [fragment for fragment in self._fragments[flat] if fragment.name in self.used]
        decayed = [fragment for fragment in found if len(fragment.shape) >= 2]
        kept = [fragment for fragment in found if len(fragment.shape) < 2]
        if self.factor != 1.0:
            flat.grad.mul_(self.factor)  # type: ignore[union-attr]
        for fragments, decay in ((decayed, self._config.weight_decay), (kept, 0.0)):
            if fragments:
                self._update_fragments(flat, fragments, learning_rate, decay)

    def _update_fragments(
        self, flat: torch.Tensor, fragments: Sequence[Fragment], learning_rate: float, decay: float
    ) -> None:
        def views(tensor: torch.Tensor) -> list[torch.Tensor]:
            flattened = tensor.view(-1)
            return [flattened.narrow(0, fragment.offset, fragment.length) for fragment in fragments]

        assert flat.grad is not None
        state, config = self.state[flat], self._config
        moments = [views(state[moment]) for moment in self.moments]
        parameters, gradients = views(flat.detach()), views(flat.grad)
        if config.name == "adamw":
            adamw(
                params=parameters,
                grads=gradients,
                exp_avgs=moments[0],
                exp_avg_sqs=moments[1],
                max_exp_avg_sqs=[],
                state_steps=[self.steps[fragment.name].clone() for fragment in fragments],
                fused=True,
                amsgrad=False,
                beta1=config.betas[0],
                beta2=config.betas[1],
                lr=learning_rate,
                weight_decay=decay,
                eps=config.eps,
                maximize=False,
            )
        else:
            sgd(
                params=parameters,
                d_p_list=gradients,
                momentum_buffer_list=list(moments[0]) if moments else [None] * len(parameters),
                fused=True,
                weight_decay=decay,
                momentum=config.betas[0],
                lr=learning_rate,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )

    def count(self, names: Iterable[str]) -> None:
        """Count a step for `names`, once a step and not once a partition: a parameter may lie in parts on many ranks."""
        for name in names:
            self.steps[name] += 1
