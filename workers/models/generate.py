"""Text from an exported model: sampling token by token, without a key/value cache, for a look at what was learned.

Each token costs one forward over the whole context: about 10 ms for the size `tiny` on a CPU core.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from workers.data import DataError
from workers.data.tokenizer_file import FILE_NAME, TokenizerFile, read_tokenizer
from workers.errors import WorkerError
from workers.models.llama import Llama
from workers.models.llama_dimensions import dimensions_from_hf


class ExportedModelError(WorkerError):
    """A directory does not hold a model that we exported: says which file lacks what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """A module with its weights, ready to be called, and the longest sequence it was trained on."""

    module: nn.Module
    context_tokens: int


def open_exported_tokenizer(directory: Path) -> TokenizerFile:
    """Read the tokenizer of an export. Raises ExportedModelError: what was trained on bare token files has none."""
    try:
        return read_tokenizer(directory)
    except DataError as error:
        raise ExportedModelError(
            f"{directory} holds no {FILE_NAME} that says what an id means: {error}"
        ) from error


def load_exported(directory: Path) -> ExportedModel:
    """Read `config.json` and `model.safetensors` of a Llama export onto the CPU. Raises ExportedModelError."""
    try:
        config: dict[str, Any] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        dimensions, context = dimensions_from_hf(config), int(config["max_position_embeddings"])
        weights = _read_weights(directory)
    except OSError as error:
        raise ExportedModelError(f"{directory} holds no exported model: {error}") from error
    except SafetensorError as error:
        raise ExportedModelError(f"{directory}/model.safetensors cannot be read: {error}") from error
    except (KeyError, ValueError) as error:
        raise ExportedModelError(
            f"{directory}/config.json is not that of a Llama export: {error!r}"
        ) from error
    with torch.device(
        "meta"
    ):  # the weights come from the file: draw none, and leave the caller's generator alone
        module = Llama(dimensions)
    expected = {name for name, _ in module.named_parameters()}  # without the second name of a tied table
    if set(weights) != expected:
        raise ExportedModelError(
            f"{directory}/model.safetensors: missing {sorted(expected - set(weights))}, "
            f"unexpected {sorted(set(weights) - expected)}"
        )
    for name, weight in weights.items():
        _check_shape(directory, name, weight, module.get_parameter(name))
    module.load_state_dict(weights, strict=False, assign=True)
    if dimensions.tie_embeddings:
        module.lm_head.weight = module.model.embed_tokens.weight  # `assign` replaced one of the two
    return ExportedModel(module=module.eval(), context_tokens=context)


def _read_weights(directory: Path) -> dict[str, torch.Tensor]:
    """Read the one file, or every file that the index names."""
    index = directory / "model.safetensors.index.json"
    names = {"model.safetensors"}
    if index.is_file():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    parts = [load_file(directory / name) for name in sorted(names)]
    return {name: tensor for part in parts for name, tensor in part.items()}


def _check_shape(directory: Path, name: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    if found.shape != expected.shape:
        raise ExportedModelError(
            f"{directory}/model.safetensors: {name} is {tuple(found.shape)}, "
            f"config.json says {tuple(expected.shape)}"
        )


@torch.no_grad()
def generate_ids(
    model: ExportedModel,
    prompt: Sequence[int],
    *,
    num_tokens: int,
    allowed: Collection[int],
    temperature: float,
    seed: int,
) -> list[int]:
    """Continue `prompt` (at least one id) by `num_tokens` ids of `allowed`; the same arguments give the same ids.

    Temperature 0 takes the likeliest one each time. What lies further back than the model's context is forgotten.
    """
    assert len(prompt), "a model predicts the token after something"
    assert temperature >= 0, temperature
    generator = torch.Generator().manual_seed(seed)
    drawn_from = torch.tensor(sorted(allowed))
    ids = [int(token) for token in prompt]
    for _ in range(num_tokens):
        window = torch.tensor([ids[-model.context_tokens :]])
        logits = model.module(window)[0, -1, drawn_from].float()
        if temperature == 0:
            place = logits.argmax()
        else:
            place = torch.multinomial(torch.softmax(logits / temperature, dim=-1), 1, generator=generator)
        ids.append(int(drawn_from[place]))
    return ids[len(prompt) :]


def generate_text(
    directory: Path, prompt: str, *, num_tokens: int, temperature: float = 0.8, seed: int = 0
) -> str:
    """Return what an exported model writes after `prompt`, which is no part of it.

    Marks are never drawn, so that it is `num_tokens` tokens of text whatever the model thinks of its end.
    """
    model, tokenizer = load_exported(directory), open_exported_tokenizer(directory)
    given = [int(token) for token in tokenizer.encode([prompt.encode()])[0]]
    begin = [] if tokenizer.document_mark is None else [tokenizer.document_mark]
    ids = generate_ids(
        model,
        [*begin, *given] or sorted(tokenizer.text_ids)[:1],
        num_tokens=num_tokens,
        allowed=tokenizer.text_ids,
        temperature=temperature,
        seed=seed,
    )
    # Decoded together: some vocabularies drop the space before what they take for the beginning of a text.
    return tokenizer.decode([*given, *ids]).removeprefix(tokenizer.decode(given))
