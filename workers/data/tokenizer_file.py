"""Tokenizers of the tokenizers library: one that somebody made, and a byte-level BPE that is trained on the job's text."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Final

import numpy as np
import tokenizers
import xxhash
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from workers.data.dataset import DataError
from workers.data.tokenizer import DOCUMENT_MARK, TURN_BEGINS, TURN_ENDS, Ids

FILE_NAME: Final = "tokenizer.json"
_MARKS: Final = (DOCUMENT_MARK, TURN_BEGINS, TURN_ENDS)
# What separates documents in vocabularies whose own rules put nothing before a text (GPT-2, Qwen, ...).
_SEPARATORS: Final = (DOCUMENT_MARK, "<|endoftext|>", "<|end_of_text|>", "</s>", "<s>")


class TokenizerFile:
    """A tokenizer of the tokenizers library, by the content of its file. Fulfils `Tokenizer`."""

    def __init__(self, content: str) -> None:
        """Read `content`. Raises DataError where it is no tokenizer."""
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(content)
        except Exception as error:
            # The library raises bare `Exception`s for whatever it cannot read.
            raise DataError(f"this is no {FILE_NAME} of the tokenizers library: {error}") from error
        self._tokenizer.no_truncation()  # a file may carry the limits that somebody's model once had
        self._tokenizer.no_padding()
        self._before_text = self._tokenizer.encode("").ids  # what its own rules put around a text
        self._tokenizer.encode_special_tokens = True  # a text that spells a mark stays text
        self._content = content
        self.name: Final = f"json-{xxhash.xxh3_64_hexdigest(content.encode())}"

    @property
    def vocab_size(self) -> int:
        """One more than the greatest id, added tokens included."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())

    @property
    def document_mark(self) -> int | None:
        """What its own rules put before a text; where they put nothing, the separator that the vocabulary has."""
        if self._before_text:
            return int(self._before_text[0])
        known = (self.mark(text) for text in _SEPARATORS)
        return next((number for number in known if number is not None), None)

    @property
    def marks(self) -> Mapping[int, str]:
        """The ids of added tokens and how they are written."""
        return {number: token.content for number, token in self._tokenizer.get_added_tokens_decoder().items()}

    @property
    def text_ids(self) -> Set[int]:
        """The ids that text is made of: all but the marks."""
        return set(self._tokenizer.get_vocab(with_added_tokens=True).values()) - self.marks.keys()

    def mark(self, text: str) -> int | None:
        """Return the id of an added token by its text."""
        return next((number for number, content in self.marks.items() if content == text), None)

    def encode(self, texts: Sequence[bytes]) -> list[Ids]:
        """Return the ids of each text; on all cores, unless TOKENIZERS_PARALLELISM says false."""
        decoded = [text.decode("utf-8", errors="replace") for text in texts]
        encodings = self._tokenizer.encode_batch_fast(decoded, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`; marks are left out."""
        return str(self._tokenizer.decode([int(token) for token in ids], skip_special_tokens=True))

    def to_json(self) -> str:
        """Return the content as it was given."""
        return self._content


def read_tokenizer(path: Path) -> TokenizerFile:
    """Read a `tokenizer.json`, or the one in the directory `path`. Raises DataError."""
    path = path.expanduser()
    file = path / FILE_NAME if path.is_dir() else path
    try:
        return TokenizerFile(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"data.tokenizer: cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"data.tokenizer: {file} is no text: {error}") from error
    except DataError as error:
        raise DataError(f"data.tokenizer: {file}: {error}") from error


def train_bpe(texts: Iterable[bytes], *, vocab_size: int) -> str:
    """Train a byte-level BPE (Sennrich et al. 2016; Radford et al. 2019) on `texts`; return its `tokenizer.json`.

    The same texts give the same file on every machine, whatever their order. About 7 MB/s and core. Holds the counts
    of all distinct words in memory. A small text may give fewer than `vocab_size` tokens; ids stay below it.
    """
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(_MARKS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_decoded(texts), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{DOCUMENT_MARK} $A", special_tokens=[(DOCUMENT_MARK, _MARKS.index(DOCUMENT_MARK))]
    )
    # Written anew, so that the file does not depend on how this version of the library lays out its JSON.
    return json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, indent=1)


def _decoded(texts: Iterable[bytes]) -> Iterator[str]:
    for text in texts:
        yield text.decode("utf-8", errors="replace")
