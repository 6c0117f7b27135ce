"""Bytes to text, by one stated rule: strict UTF-8, unless an encoding is named.

Without an encoding everything that is not UTF-8 text is refused with what was seen and what to do.
With one, what it cannot decode is replaced by U+FFFD and counted. Line ends stay as they are.
"""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Iterator

from andrea.errors import DataError

CHUNK = 1 << 20
# Larger stretches are decoded in such parts.
_PART = 1 << 13

REPLACED = "undecodable characters"
BYTE_ORDER_MARKS = "byte-order marks"

_BYTE_ORDER_MARK = "\ufeff"
# Longer marks first: UTF-32's little-endian mark begins with UTF-16's.
_OTHER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_KNOWN_FILES = {
    b"%PDF": "a PDF; extract its text first",
    b"PK\x03\x04": "a zip archive, as .docx, .epub and .odt are; extract its text first",
    b"\xfd7zXZ": "xz data; decompress it first",
    b"BZh": "bzip2 data; decompress it first",
    b"\x28\xb5\x2f\xfd": "zstd data; decompress it first",
    b"PAR1": "a Parquet file; name it .parquet",
    b"\xd0\xcf\x11\xe0": "an old Office document; save it as plain text first",
    b"SQLite format 3": "an SQLite database",
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"\x7fELF": "a program",
}
_TEXT_CONTROLS = b"\t\n\v\f\r\x1b"


def decode(
    chunks: Iterator[bytes], label: str, encoding: str | None, counts: Counter[str]
) -> Iterator[str]:
    """Yield the text of a byte stream piece by piece, without its byte-order mark.

    `label` names the stream in messages; `counts` takes byte-order marks and replacements.
    Raises DataError at the first byte that is not UTF-8 text, or for an unknown encoding.
    """
    if encoding is None:
        pieces = _decode_strictly(chunks, label)
    else:
        pieces = _decode_replacing(chunks, label, encoding, counts)
    return without_byte_order_mark(pieces, counts)


def without_byte_order_mark(pieces: Iterator[str], counts: Counter[str]) -> Iterator[str]:
    """Yield the pieces that are not empty, without the byte-order mark the first may start with."""
    first = True
    for piece in pieces:
        if first and piece:
            first = False
            if piece.startswith(_BYTE_ORDER_MARK):
                counts[BYTE_ORDER_MARKS] += 1
                piece = piece[1:]
        if piece:
            yield piece


def decode_in_parts(decoder: codecs.IncrementalDecoder, data: bytes) -> str:
    """Return `decoder.decode(data)`, without what that does to memory.

    Python guesses the size of a text and corrects it. With megabytes that leaves holes of all sizes
    in the process's memory, which grows by hundreds of megabytes over some gigabytes of text.
    """
    state = decoder.getstate()
    try:
        starts = range(0, len(data), _PART)
        return "".join([decoder.decode(data[start : start + _PART]) for start in starts])
    except UnicodeError:
        # Once more in one, for an error that tells the place in all of the data.
        decoder.setstate(state)
        return decoder.decode(data)


def _decode_strictly(chunks: Iterator[bytes], label: str) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    head = b""
    taken = 0
    for chunk in chunks:
        head = head or chunk[:1024]
        if taken == 0:
            _refuse_other_marks(head, label)
        if 0 in chunk:
            raise DataError(f"{label}: {_about_nul(head, taken + chunk.index(0))}")
        taken += len(chunk)
        try:
            text = decode_in_parts(decoder, chunk)
        except UnicodeDecodeError as error:
            # The object is the chunk, after the start of a character that the decoder held back.
            offset = taken - len(error.object) + error.start
            raise DataError(f"{label}: {_about_byte(head, error, offset)}") from None
        yield text
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{label}: ends within a character, at byte {taken - len(error.object)}: the file is "
            "cut off, or is not UTF-8; --encoding utf-8 replaces what cannot be read"
        ) from None


def _refuse_other_marks(head: bytes, label: str) -> None:
    for mark, encoding in _OTHER_MARKS.items():
        if head.startswith(mark):
            raise DataError(
                f"{label}: starts with the byte-order mark of {encoding.upper()} "
                f"({mark.hex(' ').upper()}): add --encoding {encoding}"
            )


def _about_nul(head: bytes, offset: int) -> str:
    known = _known_file(head)
    if known:
        return known
    even, odd = head[0::2].count(0), head[1::2].count(0)
    half = max(len(head) // 2, 1)
    seen = f"NUL at byte {offset}"
    # Latin letters in UTF-16 have a zero as every other byte.
    if odd > 0.4 * half and even < 0.1 * half:
        return f"{seen}, as every second byte: looks like UTF-16; add --encoding utf-16-le"
    if even > 0.4 * half and odd < 0.1 * half:
        return f"{seen}, as every second byte: looks like UTF-16; add --encoding utf-16-be"
    return f"{seen}: this is binary, not text; leave it out, or name its --encoding if it is text"


def _about_byte(head: bytes, error: UnicodeDecodeError, offset: int) -> str:
    known = _known_file(head)
    if known:
        return known
    seen = f"byte 0x{error.object[error.start]:02X} at {offset} is not UTF-8"
    around = error.object[max(error.start - 500, 0) : error.start + 500]
    controls = sum(value < 32 and value not in _TEXT_CONTROLS for value in around)
    if controls > len(around) // 20:
        return f"{seen} and control bytes are around it: this is binary, not text; leave it out"
    return (
        f"{seen}: if the text is Latin-1, add --encoding latin-1 (Windows: cp1252); if it is "
        "damaged UTF-8, --encoding utf-8 replaces what cannot be read"
    )


def _known_file(head: bytes) -> str | None:
    return next(
        (f"this is {kind}" for magic, kind in _KNOWN_FILES.items() if head.startswith(magic)), None
    )


def check_encoding(encoding: str) -> None:
    """Raise DataError if Python has no text encoding of this name."""
    try:
        # Not of nothing: Python does not look at the name then.
        b" ".decode(encoding, "replace")
        codecs.getincrementaldecoder(encoding)
    except (LookupError, ValueError):
        raise DataError(
            f"no text encoding is called {encoding!r}: try utf-8, utf-16, latin-1 or cp1252"
        ) from None


def _decode_replacing(
    chunks: Iterator[bytes], label: str, encoding: str, counts: Counter[str]
) -> Iterator[str]:
    check_encoding(encoding)
    decoder_type = codecs.getincrementaldecoder(encoding)
    replacing, ignoring = decoder_type("replace"), decoder_type("ignore")
    try:
        for chunk in chunks:
            text = decode_in_parts(replacing, chunk)
            # The two differ by one U+FFFD for each error; the text may hold some of its own.
            counts[REPLACED] += len(text) - len(decode_in_parts(ignoring, chunk))
            yield text
        text = replacing.decode(b"", final=True)
        counts[REPLACED] += len(text) - len(ignoring.decode(b"", final=True))
        yield text
    except UnicodeError as error:
        raise DataError(f"{label}: cannot be read as {encoding}: {error}") from None
