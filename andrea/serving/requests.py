"""What a client asks for: the fields of completions and chat completions, as texts to be written.

Whatever would change the answer and is not served is refused, not passed over.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from andrea.errors import ArgumentError, TokenizerError
from andrea.sampling import SamplingConfig

from .chat import Template, parse_messages
from .errors import RequestError
from .fields import Fields, is_number, shown
from .text import Wish

if TYPE_CHECKING:
    from andrea.tokenizers import Tokenizer

_MOST_STOPS = 16
_LONGEST_STOP = 200
_MOST_BIASES = 1024
_USUAL_TOKENS = 16  # of completions, as OpenAI has it
# They describe the caller, or the service of another company; nothing is written differently.
_IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")


@dataclass(frozen=True)
class Served:
    """The model that is served, and how much one request may ask for.

    opening: what an empty prompt becomes. most_texts: prompts times n of one request.
    """

    name: str
    tokenizer: Tokenizer
    block_size: int
    opening: str
    template: Template
    most_tokens: int
    most_texts: int


@dataclass(frozen=True)
class Request:
    """A request that can be served; `wishes` are n texts of the first prompt, then of the next.

    echo: a prompt for each wish where it is to be repeated before the text. answers_chat: in the
    form of chat completions; `strips` leaves out white space before the answer.
    """

    wishes: tuple[Wish, ...]
    prompt_tokens: int
    streams: bool
    includes_usage: bool
    answers_chat: bool
    echo: tuple[str, ...] = ()
    strips: bool = False


def parse_completion(values: dict[str, Any], served: Served) -> Request:
    """A request to /v1/completions.

    Raises:
        RequestError: a field is wrong, or asks for what is not served.
    """
    fields = Fields(values)
    _check_model(fields, served)
    most = _most_prompt_tokens(fields, served)
    prompts = [_prompt(one, served, most) for one in _prompts(fields)]
    count = fields.integer("n", 1, 1, served.most_texts)
    if len(prompts) * count > served.most_texts:
        raise RequestError(
            f"{len(prompts)} prompts times n {count} are more than {served.most_texts} texts, "
            "which is the most of one request",
            field="prompt",
        )
    alternatives = None
    if fields.value("logprobs") is not None:
        alternatives = fields.integer("logprobs", 0, 0, 5)
    echo = fields.flag("echo")
    if echo and alternatives is not None:
        raise RequestError("echo together with logprobs is not served", field="echo")
    max_tokens = fields.integer("max_tokens", _USUAL_TOKENS, 0, served.most_tokens)
    fields.expect("best_of", count, why="the texts that are written are all returned")
    fields.expect("suffix", "", why="the model writes on, it does not fill in")
    wishes = _wishes(fields, served, prompts, count, max_tokens, alternatives, stop=())
    texts = [served.tokenizer.decode(np.array(prompt)) for prompt in prompts] if echo else []
    return Request(
        wishes,
        sum(map(len, prompts)),
        *_streaming(fields),
        answers_chat=False,
        echo=tuple(text for text in texts for _ in range(count)),
    )


def parse_chat(values: dict[str, Any], served: Served) -> Request:
    """A request to /v1/chat/completions.

    Raises:
        RequestError: a field is wrong, or asks for what is not served.
    """
    fields = Fields(values)
    _check_model(fields, served)
    template = served.template
    messages = parse_messages(fields.value("messages"))
    most = _most_prompt_tokens(fields, served)
    prompt = _prompt(template.render(messages), served, most, field="messages")
    count = fields.integer("n", 1, 1, served.most_texts)
    alternatives = None
    wants_odds = fields.flag("logprobs")
    number = fields.integer("top_logprobs", 0, 0, 20)
    if wants_odds:
        alternatives = number
    elif number:
        raise RequestError("top_logprobs needs logprobs to be true", field="top_logprobs")
    usual = fields.integer(
        "max_tokens", min(served.block_size, served.most_tokens), 1, served.most_tokens
    )
    max_tokens = fields.integer("max_completion_tokens", usual, 1, served.most_tokens)
    for name in ("tools", "functions"):
        fields.expect(name, [], why="the model calls no tools")
    for name in ("tool_choice", "function_call"):
        fields.expect(name, "none", "auto", why="the model calls no tools")
    fields.expect("response_format", {"type": "text"}, why="the model writes text alone")
    fields.expect("modalities", ["text"], why="the model writes text alone")
    fields.ignore("parallel_tool_calls", "reasoning_effort", "verbosity", "prediction")
    wishes = _wishes(fields, served, [prompt], count, max_tokens, alternatives, template.stop)
    return Request(
        wishes, len(prompt), *_streaming(fields), answers_chat=True, strips=template.strips
    )


def _check_model(fields: Fields, served: Served) -> None:
    name = fields.text("model")
    if name is not None and name != served.name:
        raise RequestError(
            f"the model {shown(name)} does not exist; {shown(served.name)} does",
            status=404,
            field="model",
            code="model_not_found",
        )


def _prompts(fields: Fields) -> list[str | list[int]]:
    """Text, tokens, or a list of either; left out, it is an empty text."""
    value = fields.value("prompt")
    if value is None or isinstance(value, str):
        return [value or ""]
    if isinstance(value, list) and value:
        if all(type(one) is int for one in value):
            return [value]
        if all(isinstance(one, str) for one in value):
            return value
        if all(isinstance(one, list) and all(type(x) is int for x in one) for one in value):
            return value
    raise RequestError(
        "prompt must be a text, a list of texts, a list of tokens or a list of those, "
        f"got {shown(value)}",
        field="prompt",
    )


def _most_prompt_tokens(fields: Fields, served: Served) -> int | None:
    """How many of its last tokens are kept of a longer prompt; None: it is refused. -1: all that
    the model can see. Other servers of open models have this field, too."""
    if fields.value("truncate_prompt_tokens") is None:
        return None
    most = fields.integer("truncate_prompt_tokens", -1, -1, served.block_size)
    if most == 0:
        fields.refuse("truncate_prompt_tokens", "-1, or 1 or more", most)
    return served.block_size if most == -1 else most


def _prompt(
    value: str | list[int], served: Served, most: int | None, field: str = "prompt"
) -> tuple[int, ...]:
    """The tokens that a text begins with: one at least, and no more than the model can see."""
    tokenizer = served.tokenizer
    if isinstance(value, str):
        try:
            tokens = tokenizer.encode(value or served.opening).tolist()
        except TokenizerError as error:
            raise RequestError(str(error), field=field) from error
    else:
        tokens = value
        wrong = [token for token in tokens if not 0 <= token < tokenizer.vocab_size]
        if wrong:
            raise RequestError(
                f"token {shown(wrong[0])} is outside the vocabulary of {tokenizer.vocab_size}",
                field=field,
            )
    if most is not None:
        tokens = tokens[-most:]
    if len(tokens) > served.block_size:
        raise RequestError(
            f"{field} has {len(tokens)} tokens, but the model sees {served.block_size} at most: "
            "leave out its beginning, or ask for it with truncate_prompt_tokens -1",
            field=field,
            code="context_length_exceeded",
        )
    return tuple(tokens) or (tokenizer.beginning_of_document,)


def _wishes(
    fields: Fields,
    served: Served,
    prompts: Sequence[tuple[int, ...]],
    count: int,
    max_tokens: int,
    alternatives: int | None,
    stop: tuple[str, ...],
) -> tuple[Wish, ...]:
    """What both interfaces have in common; to be read last, since it refuses unknown fields."""
    seed = fields.integer("seed", secrets.randbits(63), -(2**63), 2**64 - 1) % 2**64
    stops = (*_stop(fields), *stop)
    bias = _bias(fields, served.tokenizer.vocab_size)
    presence = fields.number("presence_penalty", 0.0, -2.0, 2.0)
    frequency = fields.number("frequency_penalty", 0.0, -2.0, 2.0)
    sampling = _sampling(fields, served.tokenizer.vocab_size)
    for name in ("stream", "stream_options"):
        fields.value(name)
    fields.ignore(*_IGNORED)
    fields.refuse_unknown()
    return tuple(
        Wish(
            prompt,
            max_tokens,
            sampling,
            seed,
            stream,
            stops,
            alternatives,
            bias,
            presence,
            frequency,
        )
        for prompt in prompts
        for stream in range(count)
    )


def _sampling(fields: Fields, vocab_size: int) -> SamplingConfig:
    """Beside OpenAI's fields those that other servers of open models have, by the same names."""
    values = {
        "temperature": fields.number("temperature", 1.0, 0.0, 100.0),
        "top_p": fields.number("top_p", 1.0, 0.0, 1.0),
        "min_p": fields.number("min_p", 0.0, 0.0, 1.0),
        "repetition_penalty": fields.number("repetition_penalty", 1.0, 0.0, 100.0),
    }
    top_k = max(0, fields.integer("top_k", 0, -1, 2**31 - 1))  # -1 is how others say: all
    try:
        return SamplingConfig(top_k=min(top_k, vocab_size), **values)
    except ArgumentError as error:
        raise RequestError(str(error), field=str(error).split()[0]) from error


def _stop(fields: Fields) -> tuple[str, ...]:
    value = fields.value("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    is_list = isinstance(stops, list) and len(stops) <= _MOST_STOPS
    if not is_list or not all(
        isinstance(one, str) and 0 < len(one) <= _LONGEST_STOP for one in stops
    ):
        expected = f"a text, or up to {_MOST_STOPS} texts, of 1 to {_LONGEST_STOP} characters"
        fields.refuse("stop", expected, value)
    return tuple(stops)


def _bias(fields: Fields, vocab_size: int) -> dict[int, float]:
    value = fields.value("logit_bias")
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > _MOST_BIASES:
        fields.refuse("logit_bias", f"an object of up to {_MOST_BIASES} tokens", value)
    bias = {}
    for key, number in value.items():
        token = int(key) if key.isascii() and key.isdigit() and len(key) < 20 else -1
        is_fine = 0 <= token < vocab_size and is_number(number) and -100 <= number <= 100
        if not is_fine:
            fields.refuse("logit_bias", "tokens with numbers from -100 to 100", {key: number})
        bias[token] = float(number)
    return bias


def _streaming(fields: Fields) -> tuple[bool, bool]:
    """Whether the answer streams, and whether its last event tells how many tokens it took."""
    streams = fields.flag("stream")
    options = fields.value("stream_options")
    if options is None:
        return streams, False
    if not streams or not isinstance(options, dict):
        raise RequestError(
            "stream_options is an object, for requests with stream true", field="stream_options"
        )
    inside = Fields(options)
    includes_usage = inside.flag("include_usage")
    inside.ignore("include_obfuscation")
    inside.refuse_unknown()
    return streams, includes_usage
