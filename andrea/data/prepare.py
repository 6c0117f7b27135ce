"""Text to token files: the one call that training, evaluation and the command line use.

The input is hashed; if the cache has its tokens, that is all. Otherwise it is read twice more: once
to find its documents and train the tokenizer, once to encode. Memory stays bounded for any input.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from andrea.data.cache import CACHE_LIMIT, TokenCache, digest_of
from andrea.data.decoding import BYTE_ORDER_MARKS, REPLACED, check_encoding
from andrea.data.encoding import BatchEncoder, encode_documents
from andrea.data.leakage import Repetition, RepetitionCheck, passage_share
from andrea.data.prepared import PreparedData, entropy
from andrea.data.sources import ReadOptions, Source, open_sources
from andrea.data.split import plan_split
from andrea.data.survey import Survey, read_documents, survey
from andrea.data.token_file import TokenArray, TokenFileFacts, TokenWriter
from andrea.data.workers import processes_for
from andrea.errors import ArgumentError, DataError, TokenizerError
from andrea.tokenizers import Tokenizer, TokenizerTrainer, TrainedTokenizer

# Part of every key: raise it when the same input would give other tokens than before.
_FORMAT = 1

Progress = Callable[[str, int, int], None]
"""Called with stage ("read", "scan", "tokenizer", "encode", "check"), bytes done, bytes in all."""


def prepare(
    sources: Sequence[str | os.PathLike[str]] = (),
    *,
    cache_dir: str | os.PathLike[str],
    tokenizer: str | Tokenizer = "auto",
    vocab_size: int | None = None,
    block_size: int = 1,
    encoding: str | None = None,
    text_key: str | None = None,
    skip_bad: bool = False,
    validation_fraction: float = 0.1,
    stdin: BinaryIO | None = None,
    progress: Progress | None = None,
    processes: int | None = None,
    cache_limit: int = CACHE_LIMIT,
) -> PreparedData:
    """Read files, folders or "-" (standard input), tokenize, split, and keep the result in a cache.

    No sources: the Python language reference. `tokenizer` is a name to train or a trained one.
    `encoding` None: strict UTF-8; a name: undecodable bytes are replaced and counted. With a
    `text_key` (default "text", of JSON lines and Parquet) standard input is read as JSON lines. A
    `validation_fraction` of 0 leaves validation empty. `processes` encode; None: as many as a large
    text and the machine are worth. Texts that were not used for long are removed from a cache of
    more than `cache_limit` bytes. Raises DataError or TokenizerError.
    """
    if not 0 <= validation_fraction < 1:
        raise ArgumentError(
            f"validation_fraction is {validation_fraction}, must be at least 0 and below 1"
        )
    if encoding is not None:
        check_encoding(encoding)
    if isinstance(tokenizer, str):
        TokenizerTrainer(tokenizer, vocab_size)  # refuses a contradiction before anything is read
    elif vocab_size not in (None, tokenizer.vocab_size):
        raise TokenizerError(
            f"the trained tokenizer has {tokenizer.vocab_size} tokens, not {vocab_size}: leave the "
            "size out, or train a new one"
        )
    options = ReadOptions(encoding, text_key or "text", skip_bad)
    listing: Counter[str] = Counter()
    cache = TokenCache(cache_dir, cache_limit)
    with cache.work_folder() as work:
        opened = open_sources(
            sources,
            spool_folder=work,
            stdin_is_records=text_key is not None,
            stdin=stdin,
            counts=listing,
        )
        text = _Text(opened, options, progress)
        content = [_FORMAT, text.content_digest(), asdict(options), validation_fraction]
        if isinstance(tokenizer, Tokenizer):
            trained = TrainedTokenizer(tokenizer, "")
        else:
            request = digest_of([content, tokenizer, vocab_size])
            known = cache.load_tokenizer(request)
            trained = known or text.train(TokenizerTrainer(tokenizer, vocab_size))
            if known is None:
                cache.publish_tokenizer(work, request, trained)
        key = digest_of([content, trained.tokenizer.to_dict()])
        text.stage("check")
        entry = cache.load(key, text.checked)
        cached = entry is not None
        if entry is None:
            entry_folder = work / "entry"
            with cache.writing():
                record, facts = _build(
                    text, trained.tokenizer, validation_fraction, entry_folder, processes
                )
                cache.publish(entry_folder, key, *facts, record)
            entry = cache.load(key, text.checked)
    if entry is None:
        raise DataError(f"{cache_dir}: what was written there does not read back: check the disk")
    prepared = _prepared(entry, trained, listing, key, cached)
    prepared.require(block_size)
    return prepared


class _Text:
    """The input, read up to three times, with progress."""

    def __init__(
        self, sources: Sequence[Source], options: ReadOptions, progress: Progress | None
    ) -> None:
        self._sources = sources
        self._options = options
        self._progress = progress
        self._versions = [source.version() for source in sources]
        self._total = sum(source.size for source in sources)
        self._survey: Survey | None = None
        self.stage("read")
        for source in sources:
            source.on_read = self._add

    def stage(self, name: str) -> None:
        self._stage, self._done = name, 0
        self._add(0)

    def _add(self, num_bytes: int) -> None:
        self._done += num_bytes
        if self._progress is not None:
            self._progress(self._stage, self._done, self._total)

    def checked(self, done: int, total: int) -> None:
        """Tell of tokens that are read back; their bytes are not those of the text."""
        if self._progress is not None:
            self._progress("check", done, total)

    def content_digest(self) -> str:
        whole = hashlib.blake2b(digest_size=16)
        for source in self._sources:
            digest = hashlib.blake2b(digest_size=16)
            for chunk in source.raw_chunks():
                digest.update(chunk)
            whole.update(source.kind.encode() + b"\0" + digest.digest())
        return whole.hexdigest()

    def train(self, trainer: TokenizerTrainer) -> TrainedTokenizer:
        self.survey(trainer)
        self.stage("tokenizer")
        return trainer.finish()

    def survey(self, trainer: TokenizerTrainer | None = None) -> Survey:
        if self._survey is None:
            self.stage("scan")
            self._survey = survey(self._sources, self._options, trainer)
            if not self._survey.sizes:
                counts = ", ".join(_count(item) for item in self._survey.counts.items())
                label = self._sources[0].label if len(self._sources) == 1 else "these files"
                raise DataError(f"{label}: no text to train on ({counts or 'no documents'})")
            self.refuse_if_changed()
        return self._survey

    def documents(self) -> Iterator[Iterator[str]]:
        return read_documents(self._sources, self._options, Counter())

    def refuse_if_changed(self) -> None:
        for source, version in zip(self._sources, self._versions, strict=True):
            if source.version() != version:
                raise DataError(f"{source.label}: changed while it was read: start again")


def _build(
    text: _Text, tokenizer: Tokenizer, fraction: float, folder: Path, processes: int | None
) -> tuple[dict[str, Any], tuple[TokenFileFacts, TokenFileFacts]]:
    """Encode the text into a new folder; return its record and what its token files are."""
    found = text.survey()
    total = sum(found.sizes)
    if processes is None:
        processes = processes_for(total)
    split = plan_split(found.sizes, found.digests, fraction)
    encoder = BatchEncoder(tokenizer, passage_share(total))
    check = RepetitionCheck()
    text.stage("encode")
    folder.mkdir()
    with (
        TokenWriter(folder / "train.npy", tokenizer.vocab_size) as train,
        TokenWriter(folder / "validation.npy", tokenizer.vocab_size) as validation,
    ):
        totals = encode_documents(
            text.documents(), split, encoder, train, validation, check, processes
        )
    text.refuse_if_changed()
    record = {
        "train_bytes": totals.train_bytes,
        "validation_bytes": totals.validation_bytes,
        "documents": len(found.sizes),
        "validation_documents": split.validation_documents,
        "validation_wanted": fraction > 0,
        "skipped": {name: count for name, count in found.counts.items() if count},
        "unigram_entropy": entropy(totals.train_counts),
        "repetition": asdict(check.finish(found.sizes, found.digests)),
    }
    return record, (train.facts, validation.facts)


def _prepared(
    entry: tuple[TokenArray, TokenArray, dict[str, Any]],
    trained: TrainedTokenizer,
    listing: Counter[str],
    key: str,
    cached: bool,
) -> PreparedData:
    train, validation, record = entry
    skipped = {name: count for name, count in (listing + Counter(record["skipped"])).items()}
    return PreparedData(
        train=train,
        validation=validation,
        tokenizer=trained.tokenizer,
        train_bytes=record["train_bytes"],
        validation_bytes=record["validation_bytes"],
        documents=record["documents"],
        validation_documents=record["validation_documents"],
        validation_wanted=record["validation_wanted"],
        skipped=skipped,
        notes=tuple(_notes(trained.note, record, skipped)),
        fingerprint=key,
        cached=cached,
        unigram_entropy=record.get("unigram_entropy"),
        repetition=_repetition(record),
    )


def _repetition(record: dict[str, Any]) -> Repetition | None:
    # Entries of earlier versions have none.
    return Repetition(**record["repetition"]) if "repetition" in record else None


def _notes(tokenizer_note: str, record: dict[str, Any], skipped: dict[str, int]) -> Iterator[str]:
    if tokenizer_note:
        yield tokenizer_note
    share = record["validation_bytes"] / (record["train_bytes"] + record["validation_bytes"])
    if record["validation_documents"]:
        chosen, documents = record["validation_documents"], record["documents"]
        yield f"validation: {chosen:,} of {documents:,} documents, {share:.1%} of the text"
    elif record["validation_wanted"]:
        yield f"validation: the last {share:.1%} of the text"
    repetition = _repetition(record)
    if repetition is not None:
        yield from repetition.notes()
    if skipped:
        yield f"in the text: {', '.join(_count(item) for item in skipped.items())}"


_MEANING = {REPLACED: "replaced by U+FFFD", BYTE_ORDER_MARKS: "removed"}


def _count(item: tuple[str, int]) -> str:
    name, count = item
    of_one = name.removesuffix("s") if count == 1 else name
    return f"{count:,} {of_one} {_MEANING.get(name, 'skipped')}"
