"""Messages as text. A base model knows no roles: it goes on writing what it is given.

transcript: the dialogue as a play would print it, and the model writes the next line.
plain: the messages one after the other, and nothing added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import RequestError
from .fields import shown

_ROLES = ("system", "developer", "user", "assistant")


@dataclass(frozen=True)
class Message:
    """One message: who says it, and what."""

    role: str
    content: str


@dataclass(frozen=True)
class Template:
    """How messages become a prompt, and what ends the answer.

    strips: whether white space before the answer is left out.
    """

    render: Callable[[Sequence[Message]], str]
    stop: tuple[str, ...]
    strips: bool
    describe: str


def parse_messages(value: Any) -> list[Message]:
    """The `messages` of a request.

    Raises:
        RequestError: they are not a list of messages of text.
    """
    if not isinstance(value, list) or not value:
        raise RequestError("messages must be a list of one message or more", field="messages")
    messages = []
    for number, one in enumerate(value):
        where = f"messages[{number}]"
        if not isinstance(one, dict):
            raise RequestError(f"{where} must be an object, got {shown(one)}", field=where)
        role = one.get("role")
        if role not in _ROLES:
            raise RequestError(
                f"{where}.role must be one of {', '.join(_ROLES)}, got {shown(role)}",
                field=f"{where}.role",
            )
        messages.append(Message(role, _content(one.get("content"), where)))
    return messages


def _content(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise RequestError(f"{where}.content must be text, got {shown(value)}", field=where)
    texts = []
    for part in value:
        is_text = isinstance(part, dict) and part.get("type") == "text"
        if not is_text or not isinstance(part.get("text"), str):
            raise RequestError(
                f"{where}.content holds something else than text, which the model cannot read",
                field=where,
            )
        texts.append(part["text"])
    return "".join(texts)


def _transcript(messages: Sequence[Message]) -> str:
    lines = []
    for message in messages:
        if message.role in ("system", "developer"):
            lines.append(f"{message.content}\n\n")
        else:
            lines.append(f"{message.role.title()}: {message.content}\n")
    if messages[-1].role == "assistant":
        # An answer that was begun for the model is gone on with.
        return "".join(lines).removesuffix("\n")
    return "".join([*lines, "Assistant:"])


def _plain(messages: Sequence[Message]) -> str:
    return "\n".join(message.content for message in messages)


TEMPLATES = {
    "transcript": Template(
        _transcript,
        ("\nUser:", "\nAssistant:"),
        strips=True,
        describe='the messages as lines "User: ..." and "Assistant: ..."',
    ),
    "plain": Template(
        _plain, (), strips=False, describe="the messages one after the other, with nothing added"
    ),
}
