"""What the export of a model consists of: the files beside its weights, and what each tensor is called in it.

Written so that other programs read it: transformers (models of ours and of transformers), peft (adapters). The export
of a user's task is its weights alone.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, assert_never

from workers.contract.config import HfModel, LlamaModel, TaskData, TaskModel, TrainingConfig
from workers.contract.manifest import Manifest

WEIGHTS_NAME: Final = "model.safetensors"
CONFIG_NAME: Final = "config.json"
ADAPTER_WEIGHTS_NAME: Final = "adapter_model.safetensors"  # as peft calls them
ADAPTER_CONFIG_NAME: Final = "adapter_config.json"
TOKENIZER_NAME: Final = "tokenizer.json"
TOKENIZER_CONFIG_NAME: Final = "tokenizer_config.json"
_GENERATION_NAME: Final = "generation_config.json"
# What a model of transformers has beside its tokenizer, of use only with that very tokenizer.
_OF_TOKENIZER: Final = (TOKENIZER_CONFIG_NAME, "special_tokens_map.json", "chat_template.jinja")
FILE_NAMES: Final = frozenset(
    {
        WEIGHTS_NAME,
        CONFIG_NAME,
        ADAPTER_WEIGHTS_NAME,
        ADAPTER_CONFIG_NAME,
        TOKENIZER_NAME,
        _GENERATION_NAME,
        *_OF_TOKENIZER,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """An export but for its bytes. `rename` gives a tensor's name in it; None: the tensor stays behind."""

    texts: Mapping[str, str] = field(default_factory=dict)  # file name -> content
    weights_name: str = WEIGHTS_NAME
    rename: Callable[[str], str | None] = lambda name: name


def shape_of(config: TrainingConfig, manifest: Manifest, tokenizer: str | None) -> Shape:
    """Return what is written for a checkpoint. `tokenizer` is the run's `tokenizer.json`, where it has one.

    Raises ConfigError where a model of transformers cannot be found any more, or its library is not installed.
    """
    texts = {} if tokenizer is None else {TOKENIZER_NAME: tokenizer}
    match config.model:
        case LlamaModel():
            return Shape(texts=texts | _llama_texts(config, config.model, manifest, tokenizer))
        case HfModel():
            return _hf_shape(config.model, texts)
        case TaskModel():
            return Shape()
        case _:
            assert_never(config.model)


def _llama_texts(
    config: TrainingConfig, model: LlamaModel, manifest: Manifest, tokenizer: str | None
) -> dict[str, str]:
    assert not isinstance(config.data, TaskData), "the contract lets a task's data come with a task only"
    # These import torch, which an export of a user's task does without.
    from workers.data.tokenizer import TURN_ENDS
    from workers.data.tokenizer_file import TokenizerFile
    from workers.models.llama_dimensions import hf_config, llama_dimensions

    vocab_size = manifest.tensors["model.model.embed_tokens.weight"].shape[0]
    dimensions, seq_len = llama_dimensions(model, vocab_size=vocab_size), config.data.seq_len
    if tokenizer is None:
        return {CONFIG_NAME: _as_json(hf_config(dimensions, seq_len=seq_len))}
    known = TokenizerFile(tokenizer)
    mark = known.document_mark
    ends = [end for end in (mark, known.mark(TURN_ENDS)) if end is not None]  # of a document, of an answer
    told: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": seq_len}
    if mark is not None:  # a document ends where the next one begins
        told |= dict.fromkeys(("bos_token", "eos_token"), known.marks[mark])
    return {
        CONFIG_NAME: _as_json(hf_config(dimensions, seq_len=seq_len, begin=mark, ends=ends)),
        TOKENIZER_CONFIG_NAME: _as_json(told),
    }


def _hf_shape(model: HfModel, texts: Mapping[str, str]) -> Shape:
    # Imports transformers, which an export of anything else does without.
    from workers.models.hf_library import described, find_files, lora_configuration, read_configuration

    files = find_files(model)
    texts = {**texts, **_of_same_tokenizer(files, texts.get(TOKENIZER_NAME))}
    if model.lora is not None:
        adapter = _as_json(adapter_description(lora_configuration(model)))
        return Shape(
            texts={**texts, ADAPTER_CONFIG_NAME: adapter},
            weights_name=ADAPTER_WEIGHTS_NAME,
            rename=adapter_name,
        )
    configuration = _as_json(described(read_configuration(model, files)))
    return Shape(texts={**texts, CONFIG_NAME: configuration, **_read(files, [_GENERATION_NAME])})


def _of_same_tokenizer(files: Path | None, tokenizer: str | None) -> Mapping[str, str]:
    """Return what lies beside the tokenizer of the model in `files`, if it is that one that the run used."""
    found = _read(files, [TOKENIZER_NAME, *_OF_TOKENIZER])
    if tokenizer is None or found.pop(TOKENIZER_NAME, None) != tokenizer:
        return {}
    return found


def _read(files: Path | None, names: Sequence[str]) -> dict[str, str]:
    if files is None:
        return {}
    return {name: (files / name).read_text(encoding="utf-8") for name in names if (files / name).is_file()}


def adapter_name(name: str) -> str | None:
    """Return what peft calls a tensor of the adapter in its file; the base model's stay behind."""
    return name.replace(".default.", ".") if ".lora_" in name else None


def adapter_description(configuration: Any) -> Mapping[str, Any]:
    """Return peft's `adapter_config.json`: sets as sorted lists, as peft itself writes them."""
    content = configuration.to_dict()
    return {key: sorted(value) if isinstance(value, set) else value for key, value in content.items()}


def _as_json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2) + "\n"
