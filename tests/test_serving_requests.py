"""What a request may ask for, and what each wrong one is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea.serving.chat import TEMPLATES
from andrea.serving.errors import RequestError
from andrea.serving.fields import parse_object
from andrea.serving.requests import Request, Served, parse_chat, parse_completion
from andrea.tokenizers import Tokenizer
from served_model import BLOCK_SIZE, byte_tokenizer
from small_runs import small_tokenizer

BYTES = byte_tokenizer()
HELLO = [{"role": "user", "content": "Hello"}]


def served(tokenizer: Tokenizer = BYTES, template: str = "transcript", opening: str = "") -> Served:
    return Served("toy", tokenizer, BLOCK_SIZE, opening, TEMPLATES[template], 1000, 4)


def completion(**values: Any) -> Request:
    return parse_completion(values, served())


def chat(template: str = "transcript", **values: Any) -> Request:
    return parse_chat({"messages": HELLO, **values}, served(template=template))


def prompts_of(request: Request) -> list[str]:
    return [BYTES.decode(list(wish.prompt)) for wish in request.wishes]


def test_what_is_left_out_is_as_openai_has_it() -> None:
    for request in (completion(prompt="a"), completion(prompt="a", n=None, stop=None, seed=None)):
        (wish,) = request.wishes
        assert (wish.max_tokens, wish.alternatives, wish.stop) == (16, None, ())
        assert (wish.sampling.temperature, wish.sampling.top_p, wish.sampling.top_k) == (1, 1, 0)
        assert not request.streams and not request.includes_usage
    assert chat().wishes[0].max_tokens == BLOCK_SIZE
    assert completion(prompt="a").wishes[0].seed != completion(prompt="a").wishes[0].seed


def test_prompts_in_all_their_forms() -> None:
    assert prompts_of(completion(prompt="ab")) == ["ab"]
    assert prompts_of(completion(prompt=["ab", "c"], n=2)) == ["ab", "ab", "c", "c"]
    assert prompts_of(completion(prompt=[97, 98])) == ["ab"]
    assert prompts_of(completion(prompt=[[97], [98, 99]])) == ["a", "bc"]
    assert [wish.stream for wish in completion(prompt=["ab", "c"], n=2).wishes] == [0, 1, 0, 1]
    for empty in ("", None, [[]]):
        assert completion(prompt=empty).wishes[0].prompt == (BYTES.beginning_of_document,)
    request = parse_completion({}, served(opening="\n"))
    assert prompts_of(request) == ["\n"]


def test_a_prompt_may_be_cut_to_what_the_model_sees() -> None:
    text = "".join(chr(97 + number % 26) for number in range(BLOCK_SIZE + 9))
    assert prompts_of(completion(prompt=text, truncate_prompt_tokens=-1)) == [text[9:]]
    assert prompts_of(completion(prompt=text, truncate_prompt_tokens=3)) == [text[-3:]]
    assert prompts_of(completion(prompt=text[9:])) == [text[9:]]
    with pytest.raises(RequestError, match=f"{len(text)} tokens.*{BLOCK_SIZE}") as refused:
        completion(prompt=text)
    assert refused.value.code == "context_length_exceeded"


def test_messages_become_a_transcript() -> None:
    messages = [
        {"role": "system", "content": "A play."},
        {"role": "user", "content": "Who?", "name": "Kim"},
        {"role": "assistant", "content": "Me."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Wh"}, {"type": "text", "text": "y"}],
        },
    ]
    request = chat(messages=messages, stop="x")
    assert prompts_of(request) == ["A play.\n\nUser: Who?\nAssistant: Me.\nUser: Why\nAssistant:"]
    assert request.wishes[0].stop == ("x", "\nUser:", "\nAssistant:") and request.strips
    begun = [*messages[:2], {"role": "assistant", "content": "I am"}]
    assert prompts_of(chat(messages=begun)) == ["A play.\n\nUser: Who?\nAssistant: I am"]
    plain = chat("plain", messages=messages)
    assert prompts_of(plain) == ["A play.\nWho?\nMe.\nWhy"]
    assert plain.wishes[0].stop == () and not plain.strips


def test_fields_reach_the_wish() -> None:
    wish = completion(
        prompt="a",
        max_tokens=7,
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        min_p=0.1,
        repetition_penalty=1.1,
        seed=-1,
        stop=["x", "yz"],
        logprobs=3,
        logit_bias={"65": -100, "66": 2.5},
        presence_penalty=1,
        frequency_penalty=-0.5,
        user="me",
    ).wishes[0]
    sampling = wish.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 5)
    assert (sampling.min_p, sampling.repetition_penalty) == (0.1, 1.1)
    assert (wish.max_tokens, wish.seed, wish.stop) == (7, 2**64 - 1, ("x", "yz"))
    assert (wish.alternatives, wish.bias) == (3, {65: -100.0, 66: 2.5})
    assert (wish.presence_penalty, wish.frequency_penalty) == (1.0, -0.5)
    assert completion(prompt="a", top_k=-1).wishes[0].sampling.top_k == 0
    assert chat(max_completion_tokens=5).wishes[0].max_tokens == 5
    assert chat(logprobs=True).wishes[0].alternatives == 0
    assert chat(logprobs=True, top_logprobs=7).wishes[0].alternatives == 7
    assert chat(tools=[], tool_choice="none", response_format={"type": "text"}).wishes


WRONG: list[tuple[dict[str, Any], str | None, str]] = [
    ({"model": "gpt-4"}, "model", '"gpt-4" does not exist; "toy" does'),
    ({"model": 4}, "model", "a string"),
    ({"prompt": 5}, "prompt", "prompt must be"),
    ({"prompt": []}, "prompt", "prompt must be"),
    ({"prompt": ["a", 5]}, "prompt", "prompt must be"),
    ({"prompt": [True]}, "prompt", "prompt must be"),
    ({"prompt": [257]}, "prompt", "token 257 is outside the vocabulary of 257"),
    ({"prompt": [[-1]]}, "prompt", "token -1 is outside"),
    ({"prompt": ["a"] * 3, "n": 2}, "prompt", "3 prompts times n 2"),
    ({"n": 5}, "n", "between 1 and 4"),
    ({"n": 0}, "n", "between 1 and 4"),
    ({"n": True}, "n", "whole number"),
    ({"n": 1.5}, "n", "whole number"),
    ({"max_tokens": 1001}, "max_tokens", "between 0 and 1000"),
    ({"max_tokens": -1}, "max_tokens", "between 0 and 1000"),
    ({"temperature": -0.1}, "temperature", "between 0 and 100"),
    ({"temperature": "hot"}, "temperature", "a number"),
    ({"temperature": 1e999}, "temperature", "a number"),
    ({"top_p": 0}, "top_p", "above 0"),
    ({"top_p": 1.1}, "top_p", "between 0 and 1"),
    ({"repetition_penalty": 0}, "repetition_penalty", "above 0"),
    ({"top_k": 2**70}, "top_k", "whole number"),
    ({"seed": 2**64}, "seed", "whole number"),
    ({"seed": "x"}, "seed", "whole number"),
    ({"stop": ""}, "stop", "characters"),
    ({"stop": ["a"] * 17}, "stop", "up to 16"),
    ({"stop": "x" * 201}, "stop", "200 characters"),
    ({"stop": {"a": 1}}, "stop", "characters"),
    ({"logprobs": 6}, "logprobs", "between 0 and 5"),
    ({"logprobs": True}, "logprobs", "whole number"),
    ({"echo": 1}, "echo", "true or false"),
    ({"echo": True, "logprobs": 1}, "echo", "not served"),
    ({"best_of": 3}, "best_of", "best_of 3 is not served"),
    ({"suffix": "end"}, "suffix", "not served"),
    ({"logit_bias": [1]}, "logit_bias", "an object"),
    ({"logit_bias": {"300": 1}}, "logit_bias", "tokens with numbers"),
    ({"logit_bias": {"٣": 1}}, "logit_bias", "tokens with numbers"),
    ({"logit_bias": {"1" * 5000: 1}}, "logit_bias", "tokens with numbers"),
    ({"logit_bias": {"3": 101}}, "logit_bias", "tokens with numbers"),
    ({"presence_penalty": 2.1}, "presence_penalty", "between -2 and 2"),
    ({"stream": "yes"}, "stream", "true or false"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "with stream true"),
    ({"stream": True, "stream_options": {"x": 1}}, "x", "unrecognised"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "-1, or 1 or more"),
    ({"truncate_prompt_tokens": 65}, "truncate_prompt_tokens", "between -1 and 64"),
    ({"temprature": 1}, "temprature", "did you mean temperature?"),
    ({"messages": HELLO}, "messages", "unrecognised"),
]


@pytest.mark.parametrize(("values", "field", "complaint"), WRONG, ids=lambda value: str(value)[:30])
def test_a_wrong_completion_is_refused(
    values: dict[str, Any], field: str | None, complaint: str
) -> None:
    with pytest.raises(RequestError) as refused:
        completion(**{"prompt": "a", **values})
    assert complaint in str(refused.value) and refused.value.field == field
    assert refused.value.status == (404 if "exist" in complaint else 400)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": ["Hello"]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        ({"messages": [*HELLO, {"role": "user"}]}, "messages[1]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": "x" * 100}]}, "messages"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": 2}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"prompt": "x"}, "prompt"),
    ],
)
def test_a_wrong_chat_is_refused(values: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as refused:
        chat(**values)
    assert refused.value.field == field and refused.value.status == 400


def test_characters_that_the_tokenizer_lacks_are_named() -> None:
    with pytest.raises(RequestError, match="does not know 'Z'") as refused:
        parse_completion({"prompt": "Z"}, served(small_tokenizer()))
    assert refused.value.field == "prompt"
    with pytest.raises(RequestError, match="does not know") as refused:
        parse_chat({"messages": HELLO}, served(small_tokenizer()))
    assert refused.value.field == "messages"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff{}", "not JSON"),
        (b'{"n": NaN}', "NaN is no JSON number"),
        (b'{"n": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b"[]", "a JSON object"),
        (b"null", "a JSON object"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_body_that_is_no_object_is_refused(body: bytes, why: str) -> None:
    with pytest.raises(RequestError, match=why) as refused:
        parse_object(body)
    assert refused.value.code == "invalid_json" and "\n" not in str(refused.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = st.sampled_from(
    sorted({name for values, _, _ in WRONG for name in values} | {"messages", "tools", "user"})
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(NAMES, JSON, max_size=4), st.booleans())
def test_whatever_comes_is_served_or_refused(values: dict[str, Any], as_chat: bool) -> None:
    """As JSON brings it: never another error, and the answer to it can be sent."""
    values = {"messages": HELLO, **values} if as_chat else values
    try:
        body = json.dumps(values).encode("ascii")
        request = (parse_chat if as_chat else parse_completion)(parse_object(body), served())
    except RequestError as error:
        assert json.dumps(error.body()) and error.status in (400, 404)
    else:
        assert 1 <= len(request.wishes) <= 4
        assert all(1 <= len(wish.prompt) <= BLOCK_SIZE for wish in request.wishes)
