"""Loading: what does not fit is refused by name, what is damaged is found and named, and nothing is ever unpickled."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from workers.checkpointing import boxes, catalog
from workers.checkpointing.load import load
from workers.checkpointing.manifest_file import encode
from workers.checkpointing.save import Saver
from workers.contract.manifest import Manifest, ResumePoint
from workers.contract.rundir import checkpoints_dir
from workers.errors import ConfigError, DamagedCheckpointError, StorageError

MakeSaver = Callable[..., Saver]
ResumeAt = Callable[[int], ResumePoint]


def _state(seed: int = 1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    state = {
        "model.w": torch.randn(7, 5, generator=generator),
        "model.half": torch.randn(3, 2, 2, generator=generator).bfloat16(),
        "model.empty": torch.zeros(0, 4),
        "buffer.count": torch.tensor(seed),
        "buffer.mask": torch.tensor([True, False]),
    }
    for kind in ("exp_avg", "exp_avg_sq"):
        state[f"optimizer.w.{kind}"] = torch.randn(7, 5, generator=generator)
    state["optimizer.w.step"] = torch.tensor(3.0)
    return state


def _equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def saved(saver: MakeSaver, resume_at: ResumeAt) -> str:
    """The name of a checkpoint of `_state(1)`; one of `_state(0)`, a step older, lies beside it."""
    one = saver()
    one.save_final(_state(0), {}, resume_at(1))
    return one.save_final(_state(1), {}, resume_at(2))


@pytest.fixture
def directory(run_dir: str, saved: str) -> Path:
    """The directory of `saved`."""
    return checkpoints_dir(run_dir) / saved


def test_every_dtype_and_shape_comes_back_in_place(run_dir: str, saved: str, resume_at: ResumeAt) -> None:
    back = _state(7)
    places = {name: tensor.data_ptr() for name, tensor in back.items()}
    assert load(run_dir, saved, back).resume == resume_at(2)
    assert _equal(back, _state(1))
    assert {name: tensor.data_ptr() for name, tensor in back.items()} == places


def test_parameters_that_require_gradients_and_views_are_filled(run_dir: str, saved: str) -> None:
    back = _state(7)
    room = torch.zeros(5, 14)
    back["model.w"] = room[:, ::2].t().requires_grad_()
    load(run_dir, saved, back)
    assert torch.equal(room[:, ::2].t(), _state(1)["model.w"])
    assert room[:, 1::2].count_nonzero() == 0


def test_a_tensor_above_the_cap_is_stored_in_several_chunks_and_comes_back(
    saver: MakeSaver, resume_at: ResumeAt, run_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(boxes.split_box.__kwdefaults__, "cap_bytes", 16)
    name = saver().save_final(_state(1), {}, resume_at(2))
    (manifest,) = catalog.published(run_dir)
    chunks = [chunk for tensor in manifest.tensors.values() for chunk in tensor.chunks]
    assert max(chunk.length for chunk in chunks) == 16
    assert len(manifest.tensors["model.w"].chunks) == 14  # 7 rows of 20 bytes, each in two
    back = _state(7)
    load(run_dir, name, back)
    assert _equal(back, _state(1))


def test_saving_at_once_what_was_loaded_gives_an_equal_checkpoint(
    saver: MakeSaver, resume_at: ResumeAt, run_dir: str, saved: str
) -> None:
    back = _state(7)
    resume = load(run_dir, saved, back).resume
    again = saver(round_=1).save_final(back, {}, resume)
    first, second = (m for m in catalog.published(run_dir) if m.resume.step == 2)
    assert str(second.checkpoint) == again != saved
    assert first.tensors == second.tensors  # digests and all
    assert first.resume == second.resume


class TestMismatch:
    def test_missing_and_unexpected_names_are_both_listed(self, run_dir: str, saved: str) -> None:
        """B068."""
        state = _state(7)
        state["model.new"] = torch.zeros(1)
        state["model.renamed"] = state.pop("model.w")
        untouched = state["model.half"].clone()
        with pytest.raises(ConfigError) as refused:
            load(run_dir, saved, state)
        assert "missing in the checkpoint: model.new, model.renamed" in str(refused.value)
        assert "unexpected in the checkpoint: model.w" in str(refused.value)
        assert torch.equal(state["model.half"], untouched)

    def test_other_shapes_and_dtypes_are_named(self, run_dir: str, saved: str) -> None:
        state = _state(7)
        state["model.w"] = torch.zeros(5, 7)
        state["model.half"] = state["model.half"].float()
        with pytest.raises(ConfigError) as refused:
            load(run_dir, saved, state)
        assert "model.w is float32[7, 5], not float32[5, 7]" in str(refused.value)
        assert "model.half is bfloat16[3, 2, 2], not float32[3, 2, 2]" in str(refused.value)

    def test_one_that_this_host_does_not_see_is_said_with_the_host(self, run_dir: str, saved: str) -> None:
        with pytest.raises(StorageError, match=r"step-00000009\.g1\.a0\.r0\.00000000 is not visible on host"):
            load(run_dir, saved.replace("00000002", "00000009"), _state())


class TestDamage:
    """Whatever happens to a file: it is found before training, named, and the older checkpoint is there."""

    @pytest.fixture(autouse=True)
    def _older_one_stays(self, run_dir: str, saved: str) -> Any:
        yield
        older = catalog.choose(catalog.survey(run_dir), exclude=[saved])
        assert older is not None
        assert older.resume.step == 1
        back = _state(7)
        load(run_dir, str(older.checkpoint), back)
        assert _equal(back, _state(0))

    def _found_in_survey(self, run_dir: str, saved: str) -> str:
        found = catalog.survey(run_dir)
        assert saved not in [str(m.checkpoint) for m in found.published]
        (damaged,) = (d for d in found.damaged if d.name == saved)
        with pytest.raises(DamagedCheckpointError) as error:
            load(run_dir, saved, _state())
        assert error.value.checkpoint == saved
        assert error.value.reason == damaged.reason
        return damaged.reason

    def test_one_flipped_byte_anywhere_in_a_shard_is_found_on_load(
        self, run_dir: str, saved: str, directory: Path
    ) -> None:
        (file,) = directory.glob("*.bin")
        content = file.read_bytes()
        for position in range(len(content)):
            altered = bytearray(content)
            altered[position] ^= 0x10
            file.write_bytes(altered)
            with pytest.raises(DamagedCheckpointError, match=file.name):
                load(run_dir, saved, _state())
        file.write_bytes(content)
        load(run_dir, saved, _state())

    @pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
    def test_a_shard_cut_short_is_found_by_its_size(
        self, share: float, run_dir: str, saved: str, directory: Path
    ) -> None:
        (file,) = directory.glob("*.bin")
        content = file.read_bytes()
        file.write_bytes(content[: int(share * len(content))])
        reason = self._found_in_survey(run_dir, saved)
        assert reason == f"{file.name} has {int(share * len(content))} of {len(content)} bytes"

    def test_a_shard_cut_after_the_survey_is_found_on_load(
        self, run_dir: str, saved: str, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (file,) = directory.glob("*.bin")
        monkeypatch.setattr(catalog, "_file_problem", lambda *_: None)
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.raises(DamagedCheckpointError, match="the file ends early"):
            load(run_dir, saved, _state())
        file.unlink()
        with pytest.raises(DamagedCheckpointError, match=f"{file.name} is missing"):
            load(run_dir, saved, _state())

    def test_a_missing_shard_is_named(self, run_dir: str, saved: str, directory: Path) -> None:
        """B002."""
        (file,) = directory.glob("*.bin")
        file.unlink()
        assert self._found_in_survey(run_dir, saved) == f"{file.name} is missing"

    def test_an_altered_or_emptied_manifest_is_named(self, run_dir: str, saved: str, directory: Path) -> None:
        manifest = directory / "manifest.json"
        content = manifest.read_bytes()
        manifest.write_bytes(content.replace(b'"next_index":16', b'"next_index":24'))
        assert self._found_in_survey(run_dir, saved) == "manifest.json: altered: its digest does not match"
        manifest.write_bytes(b"")
        assert "cut short" in self._found_in_survey(run_dir, saved)

    def test_without_its_manifest_it_does_not_exist(self, run_dir: str, saved: str, directory: Path) -> None:
        (directory / "manifest.json").unlink()
        assert catalog.survey(run_dir).unpublished == (saved,)
        with pytest.raises(StorageError, match="not visible"):
            load(run_dir, saved, _state())

    def test_a_moment_deleted_from_the_manifest_is_damage_and_names_the_parameter(
        self, run_dir: str, saved: str, directory: Path
    ) -> None:
        file = directory / "manifest.json"
        manifest = Manifest.from_json(file.read_bytes())
        kept = {name: t for name, t in manifest.tensors.items() if name != "optimizer.w.exp_avg_sq"}
        one_more = {
            f"optimizer.v.{kind}": manifest.tensors[f"optimizer.w.{kind}"] for kind in ("exp_avg", "step")
        }
        one_more["optimizer.v.exp_avg_sq"] = manifest.tensors["optimizer.w.exp_avg_sq"]
        file.write_bytes(encode(manifest.model_copy(update={"tensors": kept | one_more})))
        assert self._found_in_survey(run_dir, saved) == "parameter w lacks its exp_avg_sq"

    def test_a_pickle_in_place_of_any_file_is_refused_and_never_run(
        self, run_dir: str, saved: str, directory: Path, tmp_path: Path
    ) -> None:
        """B147."""
        marker = tmp_path / "ran"
        for file in sorted(directory.iterdir()):
            content = file.read_bytes()
            bomb = pickle.dumps(Bomb(marker))
            file.write_bytes(bomb.ljust(len(content), b"\0")[: max(len(content), len(bomb))])
            with pytest.raises(DamagedCheckpointError) as error:
                load(run_dir, saved, _state())
            assert file.name in str(error.value)
            file.write_bytes(content)
        assert not marker.exists()


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def test_the_reader_in_the_format_document_reads_every_tensor(
    run_dir: str, saved: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = (Path(__file__).parents[3] / "docs" / "checkpoint-format.md").read_text(encoding="utf-8")
    program = document.split("```python\n")[1].split("```")[0]
    program = program.replace("runs/<job>/checkpoints/<name>", str(checkpoints_dir(run_dir) / saved))
    scope: dict[str, Any] = {}
    exec(program.replace("    print(", "    read[name] = whole; print("), scope | {"read": (read := {})})
    assert _equal(read, _state(1))
    assert len(capsys.readouterr().out.splitlines()) == len(read)
