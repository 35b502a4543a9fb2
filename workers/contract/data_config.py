"""`data` of a job file: where samples come from and how they are cut. Order is not its business."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from workers.contract.base import Strict
from workers.contract.numbers import PositiveFloat, PositiveInt, Ratio


class BytesTokenizer(Strict):
    """One id a byte, and one that begins a document."""

    kind: Literal["bytes"] = "bytes"


class BpeTokenizer(Strict):
    """Byte-level BPE, trained on the job's own text the first time and kept with the tokens."""

    kind: Literal["bpe"]
    vocab_size: Annotated[PositiveInt, Field(ge=259)] = 4096  # 256 bytes and three marks are always in it


class FileTokenizer(Strict):
    """A `tokenizer.json` of the tokenizers library, or a directory that holds one."""

    kind: Literal["file"]
    path: str


def _as_tokenizer(value: object) -> object:
    """Read `bytes` and `bpe` as kinds, any other text as the path of a tokenizer file."""
    if not isinstance(value, str):
        return value
    return {"kind": value} if value in ("bytes", "bpe") else {"kind": "file", "path": value}


Tokenizer = Annotated[
    Annotated[BytesTokenizer | BpeTokenizer | FileTokenizer, Field(discriminator="kind")],
    BeforeValidator(_as_tokenizer),
]


DataPath = Annotated[
    str,
    Field(
        description="A directory or a file, on every node. A relative one begins at the job file's directory."
    ),
]


class _Tokens(Strict):
    """What every kind of token samples has. Windows of `seq_len` tokens are cut from the documents laid end to end."""

    seq_len: PositiveInt = 256
    attention: Literal["across", "within"] = (
        "across"  # of documents in one window: one stream, or each by itself
    )


class _Tokenized(_Tokens):
    tokenizer: Tokenizer = BytesTokenizer()


class TextData(_Tokenized):
    """Files of text, one document each, tokenized once into a cache keyed by their content."""

    kind: Literal["text"]
    path: DataPath  # `python-stdlib` names the running interpreter's own library
    pattern: str = "*.py"


class JsonlData(_Tokenized):
    """JSON lines, one document each: text under `key`, or a chat under it, of which only answers are learnt."""

    kind: Literal["jsonl"]
    path: DataPath
    pattern: str = "*.jsonl"
    format: Literal["text", "chat"] = "text"
    key: str | None = None  # None: `text`, or `messages` of a chat


class ParquetData(_Tokenized):
    """Rows of Parquet files, one document each: text in `column`."""

    kind: Literal["parquet"]
    path: DataPath
    pattern: str = "*.parquet"
    column: str = "text"


class TokensData(_Tokens):
    """Token files that `shardyard data prepare` wrote."""

    kind: Literal["tokens"]
    path: DataPath


class TaskData(Strict):
    """The task of `model.kind: task` brings its own samples."""

    kind: Literal["task"]


SourceName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
RowData = Annotated[TextData | JsonlData | ParquetData, Field(discriminator="kind")]
SourceData = Annotated[TextData | JsonlData | ParquetData | TokensData, Field(discriminator="kind")]


class Source(Strict):
    """One data set of a mixture, and its share of the samples."""

    weight: PositiveFloat = 1.0  # relative to the others' sum
    data: SourceData


class MixtureData(Strict):
    """Several data sets by name, of which each contributes by its weight; all are cut and tokenized alike."""

    kind: Literal["mixture"]
    sources: Annotated[Mapping[SourceName, Source], Field(min_length=1, max_length=64)]

    @property
    def seq_len(self) -> int:
        """Tokens of a sample: the same in every source."""
        return next(iter(self.sources.values())).data.seq_len

    @model_validator(mode="after")
    def _cut_alike(self) -> Self:
        for key in ("seq_len", "attention", "tokenizer"):
            values = {name: getattr(source.data, key, None) for name, source in self.sources.items()}
            told = {name: value for name, value in values.items() if value is not None}
            if len({repr(value) for value in told.values()}) > 1:
                listed = ", ".join(f"{name}: {value}" for name, value in told.items())
                raise ValueError(f"sources must have one {key}, these differ: {listed}")
        return self


DataConfig = Annotated[
    TextData | JsonlData | ParquetData | TokensData | MixtureData | TaskData, Field(discriminator="kind")
]
TokenData = TextData | JsonlData | ParquetData | TokensData | MixtureData


class Validation(Strict):
    """Samples that are kept out of training, and how often the loss over them is told."""

    ratio: Annotated[Ratio, Field(lt=1)] = 0.0  # of all samples; 0: none
    every_steps: PositiveInt = 100
    max_sequences: PositiveInt = 256  # of them, the same ones each time


def data_paths(data: DataConfig) -> Mapping[str, str]:
    """Return every path that a data section names, by the place that `--set` knows below it."""
    match data:
        case TaskData():
            return {}
        case MixtureData():
            return {
                f"sources.{name}.data.{place}": path
                for name, source in data.sources.items()
                for place, path in data_paths(source.data).items()
            }
        case TokensData():
            return {"path": data.path}
        case _:
            tokenizer = data.tokenizer
            return {"path": data.path} | (
                {"tokenizer": tokenizer.path} if isinstance(tokenizer, FileTokenizer) else {}
            )
