"""Sends requests to `serve tinylm` with Anthropic's SDK, in an environment that contains the SDK. Argument: the
server's address.
"""

import sys

import anthropic  # type: ignore[import-not-found]

PROMPT, ANSWER = "sort 40271=", "01247"
ASK = {"model": "tinylm", "messages": [{"role": "user", "content": PROMPT}]}

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)

whole = client.messages.create(max_tokens=20, system="be short", **ASK)
assert (whole.content[0].text, whole.stop_reason) == (ANSWER, "end_turn")
assert whole.usage.output_tokens == len(ANSWER) + 1
cut = client.messages.create(max_tokens=2, **ASK)
assert (cut.content[0].text, cut.stop_reason) == (ANSWER[:2], "max_tokens")
stopped = client.messages.create(max_tokens=20, stop_sequences=["24"], **ASK)
assert (stopped.content[0].text, stopped.stop_sequence) == (ANSWER[:2], "24")
with client.messages.stream(max_tokens=20, **ASK) as stream:
    assert "".join(stream.text_stream) == ANSWER
    final = stream.get_final_message()
assert (final.content[0].text, final.stop_reason) == (ANSWER, "end_turn")
assert final.usage.output_tokens == len(ANSWER) + 1
try:
    client.messages.create(max_tokens=20, **{**ASK, "model": "other"})
except anthropic.NotFoundError:
    pass
else:
    raise AssertionError("another model was answered")
