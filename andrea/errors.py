"""Every error Andrea raises on purpose.

Each class is an `AndreaError` and also the built-in exception a Python user would expect, so both
`except AndreaError` and `except ValueError` work. Messages are one line: what was seen, what to do.
"""

from __future__ import annotations


class AndreaError(Exception):
    """Base of all errors that Andrea raises on purpose."""


class ArgumentError(AndreaError, ValueError):
    """An argument of a call has a wrong shape, range or value."""


class DTypeError(AndreaError, TypeError):
    """An array or argument has a wrong type."""


class ConfigError(AndreaError, ValueError):
    """A model or training configuration contradicts itself."""


class StateError(AndreaError, RuntimeError):
    """A call came at the wrong time: after close(), or backward() before forward()."""


class OutOfMemoryError(AndreaError, MemoryError):
    """The device could not give the memory that was asked for."""


class DeviceError(AndreaError, RuntimeError):
    """The requested device, precision or instruction set is not available here."""


class EngineError(AndreaError, RuntimeError):
    """The native engine failed in a way that is not the caller's fault."""


class LibraryError(AndreaError, ImportError):
    """The native library is missing, or is not the one this package was built with."""


class DataError(AndreaError, ValueError):
    """A text cannot be read, decoded or used for training."""


class TokenizerError(AndreaError, ValueError):
    """A tokenizer cannot be trained, loaded, or used on this text."""


class CheckpointError(AndreaError, ValueError):
    """A checkpoint is missing, truncated, altered, or does not match the model."""


class RunError(AndreaError, ValueError):
    """A run folder is not what the command needs it to be."""
