"""Reading the JSON object of a request: each field is what it should be, or is refused by name."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from .errors import RequestError


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a request's body.

    Raises:
        RequestError: it is no JSON, or no object.
    """

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON number")

    try:
        found = json.loads(body.decode("utf-8"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise RequestError(f"the body is not JSON: {why}", code="invalid_json") from error
    if not isinstance(found, dict):
        raise RequestError("the body must be a JSON object", code="invalid_json")
    return found


def shown(value: object) -> str:
    """A value as an error names it: short, in one line."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class Fields:
    """The fields of a request; null counts as left out.

    Every reader raises RequestError where the field is of another kind or out of its range.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._known: set[str] = set()

    def value(self, name: str) -> Any:
        """The field as it is, None where it is left out."""
        self._known.add(name)
        return self._values.get(name)

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number between low and high."""
        value = self.value(name)
        if value is None:
            return default
        if type(value) is not int or not low <= value <= high:
            self.refuse(name, f"a whole number between {low} and {high}", value)
        return int(value)

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """A number between low and high."""
        value = self.value(name)
        if value is None:
            return default
        if not is_number(value) or not low <= value <= high:
            between = f"between {low:g} and {high:g}" if high < math.inf else f"of {low:g} or more"
            self.refuse(name, f"a number {between}", value)
        return float(value)

    def flag(self, name: str) -> bool:
        """True or false; false where it is left out."""
        value = self.value(name)
        if value not in (None, True, False) or is_number(value):
            self.refuse(name, "true or false", value)
        return bool(value)

    def text(self, name: str) -> str | None:
        """A string."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, str):
            self.refuse(name, "a string", value)
        return str(value)

    def ignore(self, *names: str) -> None:
        """Fields that change nothing here, whatever they hold."""
        self._known.update(names)

    def expect(self, name: str, *allowed: Any, why: str) -> None:
        """A field that may only say what is done anyway."""
        value = self.value(name)
        if value is not None and value not in allowed:
            raise RequestError(f"{name} {shown(value)} is not served: {why}", field=name)

    def refuse_unknown(self) -> None:
        """Refuse fields that nobody asked about: what they ask for would not be done."""
        for name in self._values:
            if name not in self._known:
                near = difflib.get_close_matches(name[:60], self._known, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise RequestError(
                    f"unrecognised field {shown(name)}{hint}",
                    field=name[:60],
                    code="unknown_parameter",
                )

    @staticmethod
    def refuse(name: str, expected: str, value: object) -> NoReturn:
        """Raise the error of a field that is not as expected."""
        raise RequestError(f"{name} must be {expected}, got {shown(value)}", field=name)


def is_number(value: object) -> bool:
    """Whether this is a finite JSON number."""
    return type(value) is int or (isinstance(value, float) and math.isfinite(value))
