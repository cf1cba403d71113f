"""Sends requests for sound, images and vectors with OpenAI's SDK. Argument: the address of a `MediaServer`.

The harness's client is tested on the same stand-in, so SDK and harness agree on the form of the replies.
"""

import base64
import io
import sys
import wave

import openai  # type: ignore[import-not-found]

client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)

file = io.BytesIO()
with wave.open(file, "wb") as sound:
    sound.setnchannels(1)
    sound.setsampwidth(2)
    sound.setframerate(16_000)
    sound.writeframes(bytes(2 * 480))
heard = client.audio.transcriptions.create(model="media", file=("a.wav", file.getvalue()))
assert heard.text == "16000 480"

spoken = client.audio.speech.create(
    model="media", voice="alloy", input="abc", response_format="pcm"
)
assert spoken.content == b"\x07\x00" * 240 * 3
with client.audio.speech.with_streaming_response.create(
    model="media", voice="alloy", input="abc", response_format="pcm"
) as stream:
    assert b"".join(stream.iter_bytes()) == spoken.content

drawn = client.images.generate(model="media", prompt="a cat", response_format="b64_json")
assert base64.b64decode(drawn.data[0].b64_json).endswith(b"a cat")

vectors = client.embeddings.create(
    model="media", input=["one", "three"], encoding_format="float"
).data
assert sorted((one.index, one.embedding) for one in vectors) == [(0, [3.0, 1.0]), (1, [5.0, 1.0])]
