"""What the tests of models share: an export directory as `shardyard export` writes it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import save_file

from workers.models.llama import Llama
from workers.models.llama_dimensions import LlamaDimensions, hf_config

WriteExport = Callable[[Llama, LlamaDimensions], Path]


@pytest.fixture
def write_export(tmp_path: Path) -> WriteExport:
    def write(module: Llama, dimensions: LlamaDimensions) -> Path:
        directory = tmp_path / "export"
        directory.mkdir(exist_ok=True)
        config = hf_config(dimensions, seq_len=32)
        (directory / "config.json").write_text(json.dumps(config))
        weights = {name: parameter.detach() for name, parameter in module.named_parameters()}
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        return directory

    return write
