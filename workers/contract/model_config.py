"""`model` of a job file: Llama by size, a transformers model, or the user's own code."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from workers.contract.base import Strict
from workers.contract.numbers import PositiveFloat, PositiveInt, Ratio

LlamaSize = Literal[
    "nano", "tiny", "small", "20m", "125m", "350m", "1b", "3b", "7b", "8b", "13b", "34b", "70b"
]
EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class LlamaModel(Strict):
    """A Llama-style decoder. `size` gives the dimensions; each one below overrides it."""

    kind: Literal["llama"] = "llama"
    size: LlamaSize = "tiny"
    vocab_size: PositiveInt | None = None  # None: what the tokenizer needs
    hidden_size: PositiveInt | None = None
    intermediate_size: PositiveInt | None = None
    num_layers: PositiveInt | None = None
    num_heads: PositiveInt | None = None
    num_kv_heads: PositiveInt | None = None
    rope_theta: PositiveFloat = 10_000.0
    norm_eps: PositiveFloat = 1e-5
    tie_embeddings: bool = True


class Lora(Strict):
    """Low-rank adapters (Hu et al. 2021) through peft: only they train, the base stays frozen."""

    rank: PositiveInt = 8
    alpha: PositiveFloat = 16.0  # adapters are scaled by alpha / rank
    dropout: Ratio = 0.0
    target_modules: tuple[str, ...] | Literal["all-linear"] = (
        "all-linear"  # names as in the model, or their ends
    )


class HfModel(Strict):
    """A causal language model of transformers: `path` names a checkpoint, or `config` gives its configuration."""

    kind: Literal["hf"]
    path: str | None = None  # a directory (config.json and safetensors), or `org/name` on the hub
    revision: str | None = None  # of the hub: a commit, a tag or a branch
    token_env: EnvironmentName | None = None  # the nodes' environment variable that holds the hub's token
    config: Mapping[str, Any] | None = (
        None  # `{model_type: llama, hidden_size: ...}`; over `path`'s own where both are given
    )
    weights: Literal["pretrained", "random"] = "pretrained"
    lora: Lora | None = None

    @model_validator(mode="after")
    def _names_a_model(self) -> Self:
        if self.path is None and self.config is None:
            raise ValueError(
                "path or config has to say which model: `path: ./my-model` or `config: {model_type: llama}`"
            )
        if self.path is None and self.weights == "pretrained":
            raise ValueError(
                "weights pretrained needs a path to read them from; say `weights: random` to begin anew"
            )
        if self.lora is not None and self.weights == "random":
            raise ValueError(
                "lora trains adapters to weights that stay as they are: give path and `weights: pretrained`"
            )
        return self


class TaskModel(Strict):
    """The user's own code: `target` names a callable, `module:attribute`, that returns a `workers.models.Task`."""

    kind: Literal["task"]
    target: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    args: Mapping[str, Any] = Field(default_factory=dict)
