"""Data through the whole loop: which ids each rank reads, and every kind of tokens trained on."""

import json
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from recorded_rows import readings
from test_loop import killed_then_resumed, train_round, train_to_the_error

from workers.contract.events import EventKind
from workers.contract.rank_messages import RankMessage, Told
from workers.contract.rundir import tokenizer_file
from workers.data.order import sample_ids
from workers.data.tokenizer_file import read_tokenizer

if TYPE_CHECKING:
    from gloo_ranks import Launcher

pytestmark = pytest.mark.torch


def recorded(directory: Path, num_rows: int, **changes: Any) -> dict[str, Any]:
    return {
        "model__target": "recorded_rows:make_recorded_task",
        "model__args": {"directory": str(directory), "num_rows": num_rows},
        "engine__kind": "ddp",
        "train__batch__micro": 1,
        "checkpoint__every_steps": 2,
        "checkpoint__mode": "sync",
        **changes,
    }


def test_each_of_four_ranks_goes_on_at_its_own_place_in_another_epoch(
    ranks: "Launcher", tmp_path: Path
) -> None:
    """B056, B058, B059: 16 rows and steps of 10 with accumulation; killed after step 3, resumed from step 2."""
    steps, accumulation = 6, 3
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    ranks(train_round, 4, str(tmp_path / "a"), recorded(whole, 16))
    killed_then_resumed(ranks, tmp_path / "b", recorded(killed, 16), 3, (4, 4))
    for expected, found in zip(readings(whole), readings(killed), strict=True):
        assert len(expected) == steps * accumulation
        assert found[: 3 * accumulation] == expected[: 3 * accumulation]
        assert found[-4 * accumulation :] == expected[2 * accumulation :]


@pytest.mark.parametrize(("num_rows", "width"), [(3, 4), (1, 2)])
def test_fewer_rows_than_ranks_train_each_row_equally_often(
    ranks: "Launcher", tmp_path: Path, num_rows: int, width: int
) -> None:
    """B027, B031: no rank runs dry, all end at the same step, and each row is trained once an epoch."""
    cut = {"train__batch__global_sequences": 6, "train__batch__micro": 3}  # nobody reads what is not counted
    changes = recorded(tmp_path / "ids", num_rows, **cut)
    outcomes = ranks(train_round, width, str(tmp_path / "run"), changes)
    assert {result.final_step for result, _ in outcomes} == {6}
    assert {(result.samples_repeated, result.samples_missing) for result, _ in outcomes} == {(0, 0)}
    expected = sample_ids(range(36), num_samples=num_rows, seed=0).tolist()
    counted = Counter(chain(*chain(*readings(tmp_path / "ids"))))
    assert counted == Counter(expected)
    assert len(set(counted.values())) == 1


def test_ranks_that_see_different_data_are_refused_with_their_numbers(
    ranks: "Launcher", tmp_path: Path
) -> None:
    changes = {"model__target": "recorded_rows:make_different_data_task", "engine__kind": "ddp"}
    for result in ranks(train_to_the_error, 3, str(tmp_path), changes, None):
        name, message, _, step = result
        assert (name, step) == ("ConfigError", None)
        assert message.startswith("the data of rank(s) 1, 2 are not those of rank 0")


def write_sources(root: Path) -> dict[str, Any]:
    """Return a mixture of text, chats (one of them broken) and Parquet, with one BPE."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (root / "text").mkdir(parents=True)
    for number in range(4):
        (root / "text" / f"{number}.py").write_text(
            f"def wider_{number}(low):\n    return low + {number}\n" * 6
        )
    turns = [{"role": "user", "content": "how low?"}, {"role": "assistant", "content": "lower than low"}]
    lines = [json.dumps({"messages": turns}) for _ in range(12)]
    (root / "chat.jsonl").write_text("\n".join([*lines, '{"messages": 1}']))
    pq.write_table(
        pa.table({"text": [f"the new row {n} is newer" for n in range(30)]}), root / "rows.parquet"
    )
    common = {"tokenizer": {"kind": "bpe", "vocab_size": 300}, "seq_len": 16}
    return {
        "text": {"weight": 2, "data": {"kind": "text", "path": str(root / "text"), **common}},
        "chat": {"data": {"kind": "jsonl", "path": str(root / "chat.jsonl"), "format": "chat", **common}},
        "rows": {"data": {"kind": "parquet", "path": str(root / "rows.parquet"), **common}},
    }


def told_of(kind: EventKind, told: list[RankMessage]) -> list[Told]:
    return [message for message in told if isinstance(message, Told) and message.kind is kind]


def test_a_mixture_of_text_chats_and_rows_trains_alike_at_every_width(
    ranks: "Launcher", tmp_path: Path
) -> None:
    """B033, B035: a bad row and what is left over at the end of a file are counted, and no rank waits for another."""
    changes = {
        "model": {"kind": "llama", "size": "nano"},
        "data": {"kind": "mixture", "sources": write_sources(tmp_path / "data")},
        "validation": {"ratio": 0.1},
        "engine__kind": "ddp",
    }
    runs = {width: ranks(train_round, width, str(tmp_path / f"run-{width}"), changes) for width in (1, 2, 3)}
    results = {width: outcomes[0][0] for width, outcomes in runs.items()}
    assert len({result.tokens for result in results.values()}) == 1
    for result in results.values():
        assert result.loss_last == pytest.approx(results[1].loss_last, rel=1e-4)
        assert result.validation_loss == pytest.approx(results[1].validation_loss, rel=1e-4)
    for outcomes in runs.values():
        (told,) = told_of(EventKind.DATA_OPENED, outcomes[0][1])
        assert told.data["bad_rows"] == 1
        assert told.data["first_bad_rows"][0].startswith("chat.jsonl:13: a chat is a list")
        assert told.data["dropped_tokens"] > 0
        assert told.data["held_out"] >= 3
        assert not any(told_of(EventKind.DATA_OPENED, said) for _, said in outcomes[1:])
    kept = {read_tokenizer(tokenizer_file(str(tmp_path / f"run-{width}"))).name for width in runs}
    assert len(kept) == 1, "the run keeps the BPE of its tokens"
