"""Reads the addresses of a service from an OpenAPI page, which FastAPI, BentoML and LitServe provide."""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.errors import one_line
from harness.serve.services.described import Service, service
from harness.serve.services.schemas import Answer, Page, Undescribed

PAGES = ("/openapi.json", "/docs.json")
"""The usual path of the page, and its path in BentoML."""

MOST_SERVICES = 20

_JSON = "application/json"


def title(page: Any) -> str | None:
    """Returns the service's name and the OpenAPI version, or None if the page is not an OpenAPI page."""
    if not isinstance(page, dict) or not isinstance(page.get("paths"), dict):
        return None
    version = page.get("openapi")
    if not isinstance(version, str):
        return None
    info = page.get("info")
    about = info if isinstance(info, dict) else {}
    return one_line(
        f"OpenAPI {version}: {about.get('title', '')} {about.get('version', '')}"
    ).strip()


def services(page: Mapping[str, Any]) -> list[Service]:
    """Returns the addresses that accept POST requests. The addresses that the page describes come first."""
    found = list(_services(page))
    return sorted(found, key=lambda one: one.manifest is None)[:MOST_SERVICES]


def _services(page: Mapping[str, Any]) -> Iterator[Service]:
    for path, methods in page["paths"].items():
        post = methods.get("post") if isinstance(methods, dict) else None
        if isinstance(post, dict) and "{" not in path:
            yield _service(page, one_line(str(path)), post)


def _service(page: Mapping[str, Any], path: str, post: Mapping[str, Any]) -> Service:
    schemas = Page(page)
    try:
        schema = _schema(schemas.plain(post.get("requestBody"), 0))
        body = schemas.body(schema)
    except Undescribed as e:
        return Service(path, None, f"the page does not describe {e}: see docs/services.md")
    answer: Answer | None = None
    try:
        replies = post.get("responses")
        reply = replies.get("200") if isinstance(replies, dict) else None
        answer = schemas.answer(_schema(schemas.plain(reply, 0)), body.takes_lists)
    except Undescribed:
        pass
    return service(path, body, answer)


def _schema(part: Mapping[str, Any]) -> Any:
    content = part.get("content")
    media = content.get(_JSON) if isinstance(content, dict) else None
    if not isinstance(media, dict):
        raise Undescribed("JSON")
    return media.get("schema")
