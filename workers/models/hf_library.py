"""The one place that imports transformers and peft: heavy, and an extra that a node may lack."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workers.contract.config import HfModel
from workers.errors import ConfigError

_INSTALL = "install the extra on the nodes: pip install 'shardyard[hf]'"


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
    token = os.environ.get(model.token_env) if model.token_env else None
    try:
        from huggingface_hub import snapshot_download  # comes with transformers

        fetched = snapshot_download(
            model.path,
            revision=model.revision,
            token=token,
            allow_patterns=["*.json", "*.safetensors", "tokenizer*"],
        )
    except (ImportError, OSError, ValueError) as error:
        raise ConfigError(f"model.path: {model.path} cannot be fetched: {error}") from error
    return Path(fetched)


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


def described(configuration: Any) -> Mapping[str, Any]:
    """Return the `config.json` with which transformers reads an export."""
    content: Mapping[str, Any] = configuration.to_dict()
    return content
