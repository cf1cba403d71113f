"""Each HTTP backend reports why a server refused a request, not only the form of the refusal."""

import gzip
import json

import pytest

from harness.backends.parts.refusals import refused, said
from harness.remote import Reply


def reply(status: int, body: bytes, *headers: str) -> Reply:
    head = "\r\n".join([f"HTTP/1.1 {status} Whatever", *headers]) + "\r\n\r\n"
    return Reply(status, head.encode(), memoryview(body))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_reported_with_its_target(status: int) -> None:
    moved = reply(status, b"<html><title>Moved</title></html>", "Location: https://other/api/v1")
    assert said(moved) == (
        "it redirects to https://other/api/v1: pass the server's own address with --url"
    )
    assert said(reply(status, b"moved")) == "moved"
    signed = reply(status, b"", "Location: https://other/e?X-Signature=SECRET&token=t?u")
    # The message omits the query of the URL, which may contain a signature.
    assert said(signed) == (
        "it redirects to https://other/e?…: pass the server's own address with --url"
    )


@pytest.mark.parametrize("again", ["7", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_refusal_shows_the_retry_after_header(again: str) -> None:
    busy = reply(429, b'{"error": {"message": "slow down"}}', f"retry-after: {again}")
    assert str(refused(busy)) == f"the server answered 429: slow down (Retry-After: {again})"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            b"<html>\n<head><title>502 Bad\nGateway</title></head><body>x",
            "a page, '502 Bad Gateway'",
        ),
        (b"<!DOCTYPE html><body><h1 class='a'>Caf&eacute; <i>busy</i></h1>", "a page, 'Café busy'"),
        (b"<p>no title", "a page, 'no title'"),
        (gzip.compress(b"text", mtime=0), "24 bytes that are not text"),
        ("é".encode()[:1] + b"abc", "4 bytes that are not text"),
        (b"a\nb\t c", "a b c"),
        (json.dumps({"message": "out of memory", "code": 500}).encode(), "out of memory"),
        (b'{"error": null, "detail": ""}', '{"error": null, "detail": ""}'),
        (b"null", "null"),
        (b"", "no text"),
    ],
)
def test_message_of_a_refusal_is_one_line(body: bytes, text: str) -> None:
    assert said(reply(502, body)) == text
