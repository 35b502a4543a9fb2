"""Exports: read back by safetensors' own reader."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from workers.checkpointing import boxes, catalog, chunks, holds
from workers.checkpointing.chunks import open_checkpoint
from workers.checkpointing.save import Saver
from workers.contract.config import TrainingConfig
from workers.contract.manifest import Chunk, ResumePoint
from workers.contract.rundir import checkpoints_dir
from workers.data.tokenizer import BOS, ByteTokenizer
from workers.errors import ConfigError, DamagedCheckpointError, StorageError
from workers.export import export
from workers.safetensors_files import cut_into_files

MakeSaver = Callable[..., Saver]
ResumeAt = Callable[[int], ResumePoint]

TASK = TrainingConfig.model_validate(
    {"model": {"kind": "task", "target": "toy:make"}, "data": {"kind": "task"}}
)
LLAMA = TrainingConfig.model_validate(
    {"model": {"kind": "llama", "size": "nano"}, "data": {"kind": "text", "path": "python-stdlib"}}
)


def _state(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "model.body.weight": torch.randn(6, 5, generator=generator),
        "model.half": torch.randn(3, 3, generator=generator).bfloat16(),
        "model.none": torch.zeros(0, 3),
        "model.scale": torch.tensor(float(seed)),
        "buffer.count": torch.tensor([seed, 2]),
        "buffer.mask": torch.tensor([True, False, True]),
        "optimizer.body.weight.exp_avg": torch.zeros(6, 5),
    }


def _weights(seed: int) -> dict[str, torch.Tensor]:
    return {
        name.split(".", 1)[1]: tensor
        for name, tensor in _state(seed).items()
        if not name.startswith("optimizer.")
    }


def _equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("cap_bytes", [8, 24, 1 << 20])
def test_the_weights_come_back_whatever_the_chunks(
    cap_bytes: int,
    saver: MakeSaver,
    resume_at: ResumeAt,
    run_dir: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(boxes.split_box.__kwdefaults__, "cap_bytes", cap_bytes)
    saver().save_final(_state(3), {}, resume_at(1))
    to = export(run_dir, None, TASK, tmp_path / "deep" / "out").export_path
    assert _equal(load_file(to / "model.safetensors"), _weights(3))
    assert [path.name for path in to.iterdir()] == ["model.safetensors"]
    assert [path.name for path in to.parent.iterdir()] == ["out"]


def test_the_one_that_is_named_is_exported_else_the_newest(
    saver: MakeSaver, resume_at: ResumeAt, run_dir: str, tmp_path: Path
) -> None:
    one = saver()
    first = one.save_final(_state(1), {}, resume_at(1))
    one.save_final(_state(2), {}, resume_at(2))
    assert _equal(
        load_file(export(run_dir, first, TASK, tmp_path / "out").export_path / "model.safetensors"),
        _weights(1),
    )
    assert _equal(
        load_file(export(run_dir, None, TASK, tmp_path / "out").export_path / "model.safetensors"),
        _weights(2),
    )


def test_tied_names_are_told_in_the_metadata(
    saver: MakeSaver, resume_at: ResumeAt, run_dir: str, tmp_path: Path
) -> None:
    saver().save_final(_state(1), {"model.head.weight": "model.body.weight"}, resume_at(1))
    to = export(run_dir, None, TASK, tmp_path / "out").export_path
    with safe_open(to / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt", "head.weight": "body.weight"}


def exported_llama(saver: MakeSaver, resume_at: ResumeAt, run_dir: str, tmp_path: Path) -> Path:
    """Export a Llama that was trained on bytes, and see that it is read back as it was."""
    from workers.engines.weights import fill
    from workers.models import load_task
    from workers.models.generate import load_exported
    from workers.models.task import DeferredTask

    task = load_task(LLAMA)
    assert isinstance(task, DeferredTask)
    module = task.build()
    for name, parameter in list(module.named_parameters()):
        fill(parameter, task.initial_weight(name))
    state = {f"model.{name}": tensor for name, tensor in module.named_parameters()}
    saver().save_final(state, {"model.lm_head.weight": "model.model.embed_tokens.weight"}, resume_at(1))
    Path(run_dir, "tokenizer.json").write_text(ByteTokenizer().to_json())
    to = export(run_dir, None, LLAMA, tmp_path / "out").export_path
    assert _equal(dict(load_exported(to).module.named_parameters()), dict(module.named_parameters()))
    return to


def test_a_llama_loads_as_what_it_was(
    saver: MakeSaver, resume_at: ResumeAt, run_dir: str, tmp_path: Path
) -> None:
    exported_llama(saver, resume_at, run_dir, tmp_path)


def test_transformers_reads_the_tokenizer_of_an_export_and_where_a_text_begins_and_ends(
    saver: MakeSaver, resume_at: ResumeAt, run_dir: str, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    to = exported_llama(saver, resume_at, run_dir, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(to)
    text = "def é(): pass  # <|bos|>"
    assert tokenizer(text)["input_ids"][:5] == [BOS, *b"def "]
    assert tokenizer.decode(tokenizer("def é()")["input_ids"], skip_special_tokens=True) == "def é()"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (BOS, BOS)
    settings = transformers.AutoModelForCausalLM.from_pretrained(to).generation_config
    assert (settings.bos_token_id, settings.eos_token_id) == (BOS, [BOS, 258])


@pytest.mark.parametrize("may_hold", [True, False])
def test_an_export_ends_whole_while_newer_saves_arrive(
    may_hold: bool,
    saver: MakeSaver,
    resume_at: ResumeAt,
    run_dir: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B076, variant. Where no lease can be written, the open files outlive the deletion."""
    one = saver(keep=1)
    name = one.save_final(_state(1), {}, resume_at(1))
    read = chunks.ChunkFiles.read
    is_there = []

    def read_after_two_newer_saves(files: chunks.ChunkFiles, chunk: Chunk) -> bytearray:
        if not is_there:
            for step in (2, 3):
                one.save_final(_state(step), {}, resume_at(step))
            is_there.append(name in [str(m.checkpoint) for m in catalog.published(run_dir)])
        return read(files, chunk)

    def refuse(*_: Any) -> None:
        raise StorageError("read-only file system")

    if not may_hold:
        monkeypatch.setattr(holds, "hold", refuse)
    monkeypatch.setattr(chunks.ChunkFiles, "read", read_after_two_newer_saves)
    to = export(run_dir, name, TASK, tmp_path / "out").export_path
    assert is_there == [may_hold]
    assert _equal(load_file(to / "model.safetensors"), _weights(1))
    one.save_final(_state(4), {}, resume_at(4))
    assert [m.checkpoint.step for m in catalog.published(run_dir)] == [4]


def test_damage_is_named_and_nothing_is_left_behind(
    saver: MakeSaver, resume_at: ResumeAt, run_dir: str, tmp_path: Path
) -> None:
    name = saver().save_final(_state(1), {}, resume_at(1))
    shard = checkpoints_dir(run_dir) / name / "rank-0.bin"
    content = bytearray(shard.read_bytes())
    content[0] ^= 1
    shard.write_bytes(content)
    place = tmp_path / "exports"
    with pytest.raises(DamagedCheckpointError, match=r"rank-0\.bin, bytes 0 to"):
        export(run_dir, name, TASK, place / "out")
    assert list(place.iterdir()) == []


def test_a_full_disk_is_said_and_an_earlier_export_stays(
    saver: MakeSaver, resume_at: ResumeAt, run_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = saver()
    one.save_final(_state(1), {}, resume_at(1))
    to = export(run_dir, None, TASK, tmp_path / "exports" / "out").export_path
    one.save_final(_state(2), {}, resume_at(2))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageError, match="No space left on device"):
        export(run_dir, None, TASK, to)
    assert _equal(load_file(to / "model.safetensors"), _weights(1))
    assert [path.name for path in to.parent.iterdir()] == ["out"]


def test_a_directory_that_holds_something_else_is_refused(
    saver: MakeSaver, resume_at: ResumeAt, run_dir: str, tmp_path: Path
) -> None:
    saver().save_final(_state(1), {}, resume_at(1))
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="holds something else than an export"):
        export(run_dir, None, TASK, tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_without_a_checkpoint_there_is_nothing_to_export(run_dir: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="holds no published checkpoint"):
        export(run_dir, None, TASK, tmp_path / "out")


class TestShards:
    """Weights above the cap go into several files, and an index of them."""

    def test_every_tensor_is_in_the_file_that_the_index_names_and_no_file_is_too_large(
        self, saver: MakeSaver, resume_at: ResumeAt, run_dir: str, tmp_path: Path
    ) -> None:
        saver().save_final(_state(3), {"model.head.weight": "model.body.weight"}, resume_at(1))
        to = export(run_dir, None, TASK, tmp_path / "out", max_shard_bytes=40).export_path
        index = json.loads((to / "model.safetensors.index.json").read_text(encoding="utf-8"))
        read = {}
        for name, file_name in index["weight_map"].items():
            with safe_open(to / file_name, framework="pt") as file:
                read[name] = file.get_tensor(name)
        assert _equal(read, _weights(3))
        assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in read.values())
        sizes = {
            path.name: sum(tensor.nbytes for tensor in load_file(path).values())
            for path in to.glob("*.safetensors")
        }
        number = len(sizes)
        assert number > 2
        assert sorted(sizes) == [f"model-{i:05d}-of-{number:05d}.safetensors" for i in range(1, number + 1)]
        assert [size for size in sizes.values() if size > 40] == [120], "only one tensor is larger by itself"
        with safe_open(to / index["weight_map"]["body.weight"], framework="pt") as file:
            assert file.metadata()["head.weight"] == "body.weight"

    def test_a_later_export_replaces_the_shards_of_an_earlier_one(
        self, saver: MakeSaver, resume_at: ResumeAt, run_dir: str, tmp_path: Path
    ) -> None:
        saver().save_final(_state(3), {}, resume_at(1))
        export(run_dir, None, TASK, tmp_path / "out", max_shard_bytes=40)
        to = export(run_dir, None, TASK, tmp_path / "out").export_path
        assert [path.name for path in to.iterdir()] == ["model.safetensors"]

    def test_a_llama_in_shards_loads_in_transformers_and_here(
        self, saver: MakeSaver, resume_at: ResumeAt, run_dir: str, tmp_path: Path
    ) -> None:
        transformers = pytest.importorskip("transformers")
        from workers.models.generate import load_exported

        state = _llama_state()
        saver().save_final(state, {"model.lm_head.weight": "model.model.embed_tokens.weight"}, resume_at(1))
        to = export(run_dir, None, LLAMA, tmp_path / "out", max_shard_bytes=50_000).export_path
        assert len(list(to.glob("model-*.safetensors"))) > 2
        theirs = transformers.LlamaForCausalLM.from_pretrained(to).state_dict()
        ours = dict(load_exported(to).module.named_parameters())
        for name, tensor in state.items():
            assert torch.equal(theirs[name.removeprefix("model.")], tensor), name
            assert torch.equal(ours[name.removeprefix("model.")], tensor), name

    def test_an_adapter_is_never_cut(self, saver: MakeSaver, resume_at: ResumeAt, run_dir: str) -> None:
        """peft reads one file."""
        saver().save_final({"model.a.lora_A.default.weight": torch.ones(4, 4)}, {}, resume_at(1))
        files = open_checkpoint(run_dir, str(catalog.published(run_dir)[0].checkpoint))
        names = {"a.lora_A.weight": "model.a.lora_A.default.weight"}
        assert list(cut_into_files(files.manifest, names, "adapter_model.safetensors", max_file_bytes=1)) == [
            "adapter_model.safetensors"
        ]


def _llama_state() -> dict[str, torch.Tensor]:
    from workers.engines.weights import fill
    from workers.models import load_task
    from workers.models.task import DeferredTask

    task = load_task(LLAMA)
    assert isinstance(task, DeferredTask)
    module = task.build()
    for name, parameter in list(module.named_parameters()):
        fill(parameter, task.initial_weight(name))
    return {f"model.{name}": tensor.detach() for name, tensor in module.named_parameters()}


def test_an_export_says_which_step_it_holds_and_what_it_passed_over(
    saver: MakeSaver, resume_at: ResumeAt, run_dir: str, tmp_path: Path
) -> None:
    one = saver()
    older = one.save_final(_state(1), {}, resume_at(1))
    newer = one.save_final(_state(2), {}, resume_at(2))
    (checkpoints_dir(run_dir) / newer / "rank-0.bin").write_bytes(b"")
    exported = export(run_dir, None, TASK, tmp_path / "out")
    assert (exported.step, exported.checkpoint) == (1, older)
    assert exported.passed_over.keys() == {newer}
    assert "rank-0.bin" in exported.passed_over[newer]
    assert export(run_dir, "1", TASK, tmp_path / "out").passed_over == {}
