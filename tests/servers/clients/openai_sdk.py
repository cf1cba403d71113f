"""Sends requests to `serve tinylm` with OpenAI's SDK, in an environment that contains the SDK. Argument: the server's
address.
"""

import asyncio
import sys

import openai  # type: ignore[import-not-found]

BASE = f"{sys.argv[1]}/v1"
PROMPT, ANSWER = "sort 40271=", "01247"
PARTS = [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}]
MANY = 64

client = openai.OpenAI(base_url=BASE, api_key="none", max_retries=0)


def complete(**fields: object) -> list[str]:
    fields = {"model": "tinylm", "prompt": PROMPT, **fields}
    return [choice.text for choice in client.completions.create(**fields).choices]


def chat(**fields: object) -> list[str]:
    fields = {"model": "tinylm", "messages": PARTS, **fields}
    return [choice.message.content for choice in client.chat.completions.create(**fields).choices]


assert complete() == [ANSWER]
assert complete(prompt=[PROMPT, PROMPT], n=2, seed=1) == [ANSWER] * 4
assert complete(echo=True, stop=["7"], temperature=0, top_p=0.5) == [PROMPT + ANSWER[:-1]]
assert chat() == [ANSWER]
assert (
    chat(
        n=2,
        response_format={"type": "text"},
        parallel_tool_calls=True,
        reasoning_effort="low",
        store=False,
        metadata={"a": "b"},
        service_tier="auto",
        stream_options=None,
        logprobs=False,
        user="me",
        max_completion_tokens=20,
    )
    == [ANSWER] * 2
)
with client.chat.completions.stream(
    model="tinylm", messages=PARTS, stream_options={"include_usage": True}
) as stream:
    assert "".join(event.delta for event in stream if event.type == "content.delta") == ANSWER
    assert stream.get_final_completion().usage.completion_tokens == len(ANSWER) + 1
assert [model.id for model in client.models.list()] == ["tinylm"]
assert client.models.retrieve("tinylm").id == "tinylm"


# Requests to the Responses API.
reply = client.responses.create(model="tinylm", input=PROMPT, max_output_tokens=20, store=False)
assert (reply.output_text, reply.status) == (ANSWER, "completed")
assert reply.usage.output_tokens == len(ANSWER) + 1
cut = client.responses.create(
    model="tinylm", input=PARTS, instructions="be short", max_output_tokens=2
)
assert (cut.output_text, cut.status) == (ANSWER[:2], "incomplete")
assert cut.incomplete_details.reason == "max_output_tokens"
with client.responses.stream(model="tinylm", input=PROMPT) as responses:
    parts = [event.delta for event in responses if event.type == "response.output_text.delta"]
    assert "".join(parts) == ANSWER
    assert len(parts) > 1
    assert responses.get_final_response().output_text == ANSWER

# Requests for vectors, once in base64, which the SDK requests by default, and once as numbers.
TEXTS = [PROMPT, "reverse 1="]
short = client.embeddings.create(model="tinylm", input=TEXTS)
plain = client.embeddings.create(model="tinylm", input=TEXTS, encoding_format="float")
assert [one.index for one in short.data] == [0, 1]
for one, other in zip(short.data, plain.data, strict=True):
    assert max(abs(a - b) for a, b in zip(one.embedding, other.embedding, strict=True)) < 1e-6
assert abs(sum(x * x for x in short.data[0].embedding) - 1) < 1e-5


def refusal(**fields: object) -> tuple[type[Exception], str | None, str | None]:
    """Returns the type of the SDK's exception, the wrong field, and the type of the error."""
    try:
        complete(**fields)
    except openai.APIStatusError as e:
        return type(e), e.param, e.type
    raise AssertionError(fields)


KIND = "invalid_request_error"
assert refusal(temperature=0.7) == (openai.BadRequestError, "temperature", KIND)
assert refusal(model="other") == (openai.NotFoundError, "model", KIND)


async def many() -> None:
    asked = openai.AsyncOpenAI(base_url=BASE, api_key="none", max_retries=0).completions
    replies = [asked.create(model="tinylm", prompt=PROMPT) for _ in range(MANY)]
    assert [r.choices[0].text for r in await asyncio.gather(*replies)] == [ANSWER] * MANY


asyncio.run(many())
