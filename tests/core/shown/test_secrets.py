import base64
import html
import json
import time
from urllib.parse import quote, quote_plus

import pytest

from harness.core.shown import secrets
from harness.core.shown.secrets import MASK, learn, learn_from_urls, masked, masked_values

SECRET = 'sk-"Ab/9+é <x>&z=_0123456789'


RAW = SECRET.encode()
ENCODED = {
    "plain": SECRET,
    "json": json.dumps(SECRET)[1:-1],
    "json in json": json.dumps(json.dumps(SECRET))[1:-1],
    "json of other characters": "".join(f"\\u{ord(c):04X}" for c in SECRET),
    "python": repr(SECRET),
    "bytes": repr(RAW),
    "percent": quote(SECRET, safe=""),
    "percent twice": quote(quote(SECRET, safe=""), safe=""),
    "form": quote_plus(SECRET),
    "html": html.escape(SECRET),
    "entities": "".join(f"&#{ord(c)};" for c in SECRET),
    "hexadecimal entities": "".join(f"&#x{ord(c):X};" for c in SECRET),
    "base64": base64.b64encode(RAW).decode(),
    "base64 for URLs": base64.urlsafe_b64encode(RAW).decode().rstrip("="),
    "basic": base64.b64encode(b"me:" + RAW).decode(),
    "basic of another user": base64.b64encode(b"ann:" + RAW).decode(),
    "base32": base64.b32encode(RAW).decode(),
    "octal": "".join(f"\\{byte:03o}" for byte in RAW),
    "quoted-printable": "".join(f"={byte:02X}" for byte in RAW),
    "javascript": "".join(f"\\u{{{ord(c):x}}}" for c in SECRET),
    "long escapes": "".join(f"\\U{ord(c):08x}" for c in SECRET),
    "old percent": "".join(f"%u{ord(c):04X}" for c in SECRET),
    "hex": RAW.hex(),
    "hex in capitals": RAW.hex().upper(),
    "hex by byte": RAW.hex(":"),
    "a dump": RAW.hex(" "),
    "an array": ", ".join(f"0x{byte:02X}" for byte in RAW),
    "numbers": ",".join(map(str, RAW)),
    "numbers on lines": ",\n  ".join(map(str, RAW)),
    "two lines": f"{SECRET[:9]}\n  {SECRET[9:]}",
    "split in quotes": f"'{SECRET[:9]}' '{SECRET[9:]}'",
    "joined in quotes": f'"{SECRET[:6]}" + "{SECRET[6:]}"',
    "small letters": SECRET.lower(),
    "cut off": SECRET[:14],
}


@pytest.mark.parametrize("text", [pytest.param(t, id=name) for name, t in ENCODED.items()])
def test_a_secret_is_masked_however_a_text_encodes_it(text: str) -> None:
    assert masked(f"Authorization: {text}.") == f"Authorization: {text}."
    learn(SECRET)
    found = masked(f"Authorization: {text}.")
    assert MASK in found
    # Only the masked header and the user's text next to the secret may remain.
    assert len(found) <= len("Authorization: ***.") + len("YW5uOn"), found


def test_a_secret_inside_a_longer_base64_text_is_masked() -> None:
    learn(SECRET)
    whole = base64.b64encode(b'{"key": "' + RAW + b'", "model": "m"}').decode()
    assert masked(whole) == f"{whole[:12]}***{whole[-22:]}"


def test_basic_and_bearer_credentials_are_masked() -> None:
    learn("Bearer tok-3n-of-mine")
    learn("Basic " + base64.b64encode(b"ann:open sesame").decode())
    assert masked("tok-3n-of-mine, open sesame") == "***, ***"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://ann:pa55word@host:1/x", "http://ann:***@host:1/x"),
        ("--metrics-push=http://ann:pa%2055@host", "--metrics-push=http://ann:***@host"),
        ("ray://t0ken-of-mine@host", "ray://***@host"),
        ("http://host/@x", "http://host/@x"),
        ("http://host/x?a=b&api_key=pa55word%2B1", "http://host/x?a=b&api_key=***"),
        ("https://host/x.onnx?X-Sig=0123456789&v=1", "https://host/x.onnx?X-Sig=***&v=1"),
        ("http://host/x?page=pa55word", "http://host/x?page=pa55word"),
    ],
)
def test_the_password_of_a_url_is_a_secret(url: str, shown: str) -> None:
    learn_from_urls([url])
    assert masked(url) == shown


def test_values_are_masked_and_keys_and_numbers_stay() -> None:
    learn("hunter22")
    assert masked_values({"hunter22": ["a hunter22", 5, None, ("x",)]}) == {
        "hunter22": ["a ***", 5, None, ["x"]]
    }


def test_a_long_secret_is_masked_in_a_long_text_in_time() -> None:
    learn("k7" * 2000)
    assert masked("x" * 100_000 + "k7" * 2000 + "é") == "x" * 100_000 + "***"


def test_a_text_too_short_to_be_a_secret_is_kept() -> None:
    learn("abc")
    learn("")
    assert masked("abc") == "abc"
    assert "abc" not in secrets._known


def test_a_short_secret_is_masked_only_as_a_whole_word() -> None:
    """Bug: if a header's value was `test`, the word was masked in paths, types and longer words that programs read."""
    learn("int8")
    learn("test")
    texts = ["int8", "/data/test/x.onnx", "http://test:80", "the latest uint8"]
    assert masked_values(texts) == texts
    assert masked_values(["401: 'test' is not a token", "key=int8 is wrong"]) == [
        "401: '***' is not a token",
        "key=*** is wrong",
    ]
    assert masked("test") == MASK


def test_a_text_of_backslashes_is_searched_in_time() -> None:
    """Bug: the time grew with the square of the number of backslashes, so a reply of 200 kB took minutes."""
    learn("a-token-of-mine")
    begun_s = time.process_time()
    assert masked("\\" * 50_000) == "\\" * 50_000
    assert time.process_time() - begun_s < 2
