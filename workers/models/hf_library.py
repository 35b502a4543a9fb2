"""The one place that imports transformers and peft: heavy, and an extra that a node may lack."""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from workers.contract.config import HfModel
from workers.errors import ConfigError

_INSTALL: Final = "install the extra on the nodes: pip install 'shardyard[hf]'"
_FETCHED: Final = [
    "*.json",
    "*.safetensors",
    "*.jinja",
]  # of a repository on the hub; weights in no other format
_LORA_PREFIX: Final = "base_model.model."  # what peft puts before the model's own names


def transformers() -> Any:
    """Return the module. Raises ConfigError, with what to install, where it is missing."""
    try:
        import transformers as library  # takes seconds; jobs of other models never pay for it
    except ImportError as error:
        raise ConfigError(f"model.kind hf: {error}; {_INSTALL}") from error
    return library


def peft() -> Any:
    """Return the module. Raises ConfigError, with what to install, where it is missing."""
    try:
        import peft as library  # as above, and only for LoRA
    except ImportError as error:
        raise ConfigError(f"model.lora: {error}; {_INSTALL}") from error
    return library


def find_files(model: HfModel) -> Path | None:
    """Return the directory of the checkpoint that `model` names; None: it names none.

    A name on the hub is fetched into the node's own cache, by one process while the others wait for its lock. Raises
    ConfigError for a directory that is not there, and for what the hub refuses.
    """
    if model.path is None:
        return None
    if model.path.startswith((".", "/", "~")):
        directory = Path(model.path).expanduser()
        if not (directory / "config.json").is_file():
            raise ConfigError(f"model.path: {directory} holds no config.json on this node")
        return directory
    transformers()  # says what to install; the hub's library comes with it
    from huggingface_hub import snapshot_download

    try:
        fetched = snapshot_download(
            model.path, revision=model.revision, token=_token(model), allow_patterns=_FETCHED
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.path: {model.path} cannot be fetched: {error}") from error
    return Path(fetched)


def _token(model: HfModel) -> str | None:
    if model.token_env is None:
        return None
    if model.token_env not in os.environ:
        raise ConfigError(f"model.token_env: this node has no environment variable {model.token_env}")
    return os.environ[model.token_env]


def read_configuration(model: HfModel, files: Path | None) -> Any:
    """Return the transformers configuration: the checkpoint's own, with `model.config` over it. Raises ConfigError."""
    library, changes = transformers(), dict(model.config or {})
    try:
        if files is not None:
            return library.AutoConfig.from_pretrained(files, **changes)
        kind = changes.pop("model_type", None)
        if not isinstance(kind, str):
            raise ConfigError("model.config: model_type is missing: for example `model_type: llama`")
        return library.AutoConfig.for_model(kind, **changes)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"model.config: {error}") from error


def build_model(configuration: Any, *, dtype: torch.dtype) -> Any:
    """Return the causal language model of `configuration`. Raises ConfigError where there is none, or none that fits."""
    try:
        return transformers().AutoModelForCausalLM.from_config(configuration, dtype=dtype)
    except (ValueError, TypeError, ImportError, AttributeError) as error:
        raise ConfigError(
            f"model.config: {configuration.model_type} makes no causal language model: {error}"
        ) from error


def lora_configuration(model: HfModel) -> Any:
    """Return peft's configuration of `model.lora`."""
    assert model.lora is not None
    lora = model.lora
    targets = lora.target_modules if isinstance(lora.target_modules, str) else list(lora.target_modules)
    return peft().LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
        base_model_name_or_path=model.path,
    )


def add_adapters(module: Any, model: HfModel) -> Any:
    """Wrap `module` with the adapters of `model.lora`. Raises ConfigError where its targets are no linear layers."""
    try:
        with (
            warnings.catch_warnings()
        ):  # peft 0.21 asks transformers 5.24 by an old name: nothing a user can mend
            warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
            adapted = peft().get_peft_model(module, lora_configuration(model))
    except ValueError as error:
        raise ConfigError(f"model.lora.target_modules: {error}") from error
    for name, parameter in adapted.named_parameters():
        if parameter.requires_grad and not name.endswith(
            (".lora_A.default.weight", ".lora_B.default.weight")
        ):
            raise ConfigError(
                f"model.lora.target_modules: {original_name(name)} belongs to no linear layer: name linear layers"
            )
    return adapted


def original_name(name: str) -> str:
    """Return what the model itself calls a parameter that peft renamed when it put adapters around it."""
    return name.removeprefix(_LORA_PREFIX).replace(".base_layer.", ".")


def described(configuration: Any) -> Mapping[str, Any]:
    """Return the `config.json` with which transformers reads an export: weights are fp32, whatever they were."""
    kinds = transformers().MODEL_FOR_CAUSAL_LM_MAPPING
    content: Mapping[str, Any] = configuration.to_dict()
    return {**content, "architectures": [kinds[type(configuration)].__name__], "dtype": "float32"}
