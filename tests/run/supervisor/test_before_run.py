"""Cache resets and commands before a run."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer
from pathlib import Path

import pytest

from harness.core.config.run_config import RunConfig
from harness.models.manifest.lookup import load_model
from harness.models.opened.remote import without_token_times
from harness.run.supervisor import before_run, preflight
from tests.builders.refusals import refusal
from tests.stand_ins.servers.quiet import QuietHandler, in_thread


@contextmanager
def serving(status: int) -> Iterator[tuple[str, list[str]]]:
    """Yields the URL of a server that replies to each POST with this status, and the list of paths it received."""
    paths: list[str] = []

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            paths.append(self.path)
            self.reply(status=status)

    with in_thread(HTTPServer(("127.0.0.1", 0), Handler)) as address:
        yield address, paths


def config(before: str | None, *urls: str) -> RunConfig:
    backend = "openai" if urls else "null"
    return RunConfig.of(scenario="offline", backend=backend, url=urls, before_run=before)


@pytest.mark.parametrize(
    ("kind", "path"), [("vllm", "/reset_prefix_cache"), ("sglang", "/flush_cache")]
)
def test_every_server_is_reset_beside_its_version(kind: str, path: str) -> None:
    with serving(200) as (one, paths), serving(200) as (two, others):
        before_run.perform(config(kind, f"{one}/v1", two))
    assert paths == others == [path]


def test_a_server_that_cannot_reset_ends_the_run() -> None:
    with serving(404) as (url, _):
        assert refusal(before_run.perform, config("vllm", url)) == (
            f"--before-run vllm: {url} answered 404 to /reset_prefix_cache: start vLLM with "
            "VLLM_SERVER_DEV_MODE=1; for another server, pass sglang or a command"
        )
        assert refusal(before_run.perform, config("sglang", url)).endswith(
            " answered 404 to /flush_cache: if the server is not SGLang, pass vllm or a command"
        )
    assert "Connection refused" in refusal(before_run.perform, config("sglang", url))


def test_a_command_runs_without_a_shell(tmp_path: Path) -> None:
    made = tmp_path / "a;b $HOME"
    before_run.perform(config(f"touch '{made}'"))
    assert made.exists()
    before_run.perform(config(None))


def test_a_command_that_fails_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    python = f"{sys.executable} -c"
    text = refusal(before_run.perform, config(f"{python} 'import sys; sys.exit(\"no cache\")'"))
    assert text.endswith("ended with status 1 (no cache): run it by itself, and correct it")
    # The message omits the arguments, which may contain a password.
    assert "no cache" not in text.partition("ended")[0]
    assert "No such file" in refusal(before_run.perform, config("/nowhere/reset"))
    monkeypatch.setattr(before_run, "LIMIT_S", 0.1)
    assert refusal(before_run.perform, config(f"{python} 'import time; time.sleep(9)'")).endswith(
        "did not end within 0.1 s"
    )


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (
            "nosuchprogram now",
            "'nosuchprogram' is not a program that can be run: write vllm, sglang or a command",
        ),
        (
            "/nowhere/reset",
            "'/nowhere/reset' is not a program that can be run: write vllm, sglang or a command",
        ),
        ("'half", "No closing quotation"),
    ],
)
def test_a_command_that_cannot_start_is_refused_first(command: str, problem: str) -> None:
    checked = (config(command), load_model("digits"), "digits", None)
    assert refusal(preflight.check, *checked).endswith(f": {problem}")
    preflight.check(config(f"{sys.executable} -V"), *checked[1:])


def test_endpoint_without_streams_is_named_as_the_cause() -> None:
    told = RunConfig.of(
        scenario="server",
        backend="openai",
        url=("http://127.0.0.1:9",),
        backend_option=("endpoint=embeddings",),
        slo=("ttft:p99=1s",),
    )
    assert without_token_times(told, told.slo[0]).endswith(
        "drop it, or use --backend openai without endpoint=embeddings or stream=off"
    )


def test_token_times_without_streams_are_refused_first() -> None:
    told = RunConfig.of(
        scenario="server",
        backend="openai",
        url=("http://127.0.0.1:9",),
        backend_option=("stream=off",),
        slo=("ttft:p99=1s",),
    )
    assert refusal(preflight.check, told, load_model("tinylm"), "digit-strings", None) == (
        "--slo ttft:p99=1s needs token times, but the server does not stream: drop it, or use --backend openai "
        "without stream=off"
    )


def test_a_reset_without_a_server_is_refused() -> None:
    text = refusal(RunConfig.of, scenario="offline", backend="null", before_run="vllm")
    assert text == "--before-run vllm needs a server: add --url"
