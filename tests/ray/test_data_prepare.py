"""`shardyard data prepare`: Ray Data writes token files, the same ones that a job would have made by itself."""

import json
import subprocess
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ray_runs import driver_environment

from orchestrator.cli.worker_process import worker_program
from orchestrator.local_cluster import LocalCluster
from workers.contract.config import JsonlData, MixtureData, TokensData
from workers.data import Mixture, load_dataset, open_tokenizer
from workers.data.token_file import open_token_file
from workers.data.token_index import read_index

pytestmark = pytest.mark.ray

JOB = """
model: {{kind: llama, size: nano}}
data:
  kind: mixture
  sources:
    lines: {{weight: 2, data: {{kind: jsonl, path: {root}/lines, tokenizer: bpe, seq_len: 8}}}}
    table: {{data: {{kind: parquet, path: {root}/table, tokenizer: bpe, seq_len: 8}}}}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "lines").mkdir()
    (tmp_path / "table").mkdir()
    for number in range(3):
        rows = [json.dumps({"text": f"sample {number} {line} lower lowest"}) for line in range(20)]
        (tmp_path / "lines" / f"{number}.jsonl").write_text("\n".join([*rows, "{"]))
        pq.write_table(
            pa.table({"text": [f"row {number} {n} wider" for n in range(9)]}),
            tmp_path / "table" / f"{number}.parquet",
        )
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(root=tmp_path))
    return path


def prepare(cluster: LocalCluster, job: Path, to: Path, *more: str) -> subprocess.CompletedProcess[str]:
    shardyard = Path(worker_program()).with_name("shardyard")
    command = [str(shardyard), "data", "prepare", str(job), "--to", str(to), "--address", cluster.gcs_address]
    return subprocess.run(
        [*command, "--json", *more],
        env=driver_environment(cluster),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_mixture_is_prepared_once_and_trains_the_samples_that_its_rows_would_give(
    ray_cluster: LocalCluster, job: Path, tmp_path: Path
) -> None:
    to = tmp_path / "out" / "tokens"
    done = prepare(ray_cluster, job, to)
    assert done.returncode == 0, done.stderr
    told = {Path(line["directory"]).name: line for line in map(json.loads, done.stdout.splitlines())}
    assert {name: line["documents"] for name, line in told.items()} == {"lines": 60, "table": 27}
    assert told["lines"]["bad_rows"] == 3  # B035
    assert told["lines"]["first_bad_rows"][0].startswith("0.jsonl:21: no JSON")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["tokens"]
    assert sorted(path.name for path in (to / "lines").iterdir()) == [
        "index.json",
        "part-00000.tokens",
        "tokenizer.json",
    ]

    rows = MixtureData.model_validate(
        {
            "kind": "mixture",
            "sources": {
                name: {"data": {"kind": kind, "path": str(tmp_path / name), "tokenizer": "bpe", "seq_len": 8}}
                for name, kind in (("lines", "jsonl"), ("table", "parquet"))
            },
        }
    )
    tokens = MixtureData.model_validate(
        {
            "kind": "mixture",
            "sources": {
                name: {"data": {"kind": "tokens", "path": str(to / name), "seq_len": 8}}
                for name in ("lines", "table")
            },
        }
    )
    made_by_itself, prepared = (
        load_dataset(rows, tmp_path / "cache"),
        load_dataset(tokens, tmp_path / "cache"),
    )
    assert isinstance(prepared, Mixture)
    assert prepared.digest == made_by_itself.digest
    tokenizer = open_tokenizer(tokens, tmp_path / "cache")
    assert tokenizer is not None
    text = tokenizer.decode(open_token_file(to / "lines" / "part-00000.tokens").ids.tolist())
    assert text.startswith("sample 0 0 lower lowest")


def test_parts_are_the_same_on_any_cluster_and_an_error_leaves_nothing(
    ray_cluster: LocalCluster, job: Path, tmp_path: Path
) -> None:
    environment = driver_environment(ray_cluster)

    def worker(section: dict[str, object], to: Path) -> subprocess.CompletedProcess[str]:
        command = [worker_program(), "data", "prepare", json.dumps(section), "--to", str(to)]
        return subprocess.run(
            [*command, "--address", ray_cluster.gcs_address, "--part-bytes", "500"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    section: dict[str, object] = {"kind": "jsonl", "path": str(tmp_path / "lines"), "seq_len": 8}
    done = worker(section, tmp_path / "parts")
    assert done.returncode == 0, done.stderr
    index = read_index(tmp_path / "parts")
    assert [file.documents for file in index.files] == [20, 20, 20]
    whole = load_dataset(JsonlData.model_validate(section), tmp_path / "cache")
    parts = load_dataset(
        TokensData(kind="tokens", path=str(tmp_path / "parts"), seq_len=8), tmp_path / "cache"
    )
    assert parts.vocab_size == whole.vocab_size
    ids = [open_token_file(tmp_path / "parts" / file.name).ids.tolist() for file in index.files]
    (cached,) = (tmp_path / "cache").glob("*.tokens")
    assert list(chain(*ids)) == open_token_file(cached).ids.tolist()

    wrong = worker({"kind": "parquet", "path": str(tmp_path / "table"), "column": "body"}, tmp_path / "wrong")
    assert wrong.returncode == 2
    assert "0.parquet has no column 'body'; it has text" in wrong.stderr.splitlines()[-1]
    again = worker(section, tmp_path / "parts")
    assert again.returncode == 2
    assert "parts is there and not empty: name another directory, or remove it" in again.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "cache",
        "job.yaml",
        "lines",
        "parts",
        "table",
    ]
