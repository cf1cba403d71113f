"""Sends prompts to servers of OpenAI's API: vLLM, SGLang, llama.cpp, transformers serve and others."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self, cast

from harness.backends.parts.openai.bodies import added_fields, demands_call, stop_bytes, text_bytes
from harness.backends.parts.openai.endpoints import ENDPOINTS
from harness.backends.parts.openai.fresh import Fresh
from harness.backends.parts.openai.mixes import Mix, read_mix
from harness.backends.parts.openai.models import served
from harness.backends.parts.openai.others import OTHERS
from harness.backends.parts.openai.replies import Completion, Reading
from harness.backends.parts.openai.streams import Streamed, fields
from harness.backends.parts.remote_options import setup_problems
from harness.core.formats.prompt_fields import draws_tokens, model_in, split
from harness.errors import ConfigError, one_line, refuse
from harness.remote import BadAnswer, Exchange, Refused, Remote, Reply, Request, Sent
from harness.types import Array, BackendSetup, Batch

MAX_TOKENS = 128
"""Maximum number of tokens in an answer, used if neither the sample nor --backend-option max_tokens sets one."""

BLOCK_TOKENS = 16
"""Number of tokens in a block of vLLM's prefix cache, by default."""

MOST_TOKEN_BYTES = 16
"""Highest plausible average number of bytes per prompt token, from which the harness derives the smallest plausible
token count of a prompt. Single tokens, such as white space, can be longer.
"""

BEGIN_TOKENS, TEMPLATE_TOKENS = 16, 1024
"""Maximum numbers of tokens that a server may add before a prompt, and around a chat (template and system prompt)."""

_OPTIONS = {
    "served": "NAME",
    "stream": "on|off",
    "max_tokens": "NUMBER",
    "ignore_eos": "off|on",
    "answer": "ids|text|calls",
    "body": "FIELDS|@FILE",
    "models": "WEIGHTS|@FILE",
    "endpoint": f"auto|{'|'.join((*ENDPOINTS, *OTHERS))}",
    "cache_block": "TOKENS",
    "fresh": "on|SEED",
}
_CHOICES = {
    "stream": ("on", "off"),
    "ignore_eos": ("off", "on"),
    "answer": ("ids", "text", "calls"),
    "endpoint": ("auto", *ENDPOINTS, *OTHERS),
}

_HEADERS = (("Content-Type", "application/json"),)
_NOT_UNDERSTOOD = (400, 422)
"""Statuses with which servers refuse an unknown field."""
_NOT_THERE = "the server answered 404:"
"""Start of a `Refused` error's message if the server does not know the path."""

_CHAT = b'"messages":'
_PATHS = {False: "/v1/completions", True: "/v1/chat/completions"}
_PROBES: Mapping[bool, Sequence[Mapping[str, Any]]] = {
    False: ({"prompt": "Hello"}, {"prompt": [1, 2]}),
    True: ({"messages": [{"role": "user", "content": "Hello"}]},),
}
"""Fields of the test prompts, in the order in which they are tried; the key is True for chats. A server without a
tokenizer refuses texts and accepts token ids.
"""

_UNSTREAMED: tuple[Mapping[str, Any], ...] = ({"return_token_ids": True}, {})
"""Fields that only some servers accept, in order of preference."""


class _Dialect(NamedTuple):
    """The form of requests to one endpoint, for completions or for chat completions."""

    prompt: Mapping[str, Any]
    """Fields of the test prompt that the server accepted."""
    fields: Mapping[str, Any]
    """Fields of every request, which a sample may override."""
    head: bytes
    """The start of each body, up to the part that belongs to the sample."""
    bounded_head: bytes
    """The head used for a sample without max_tokens."""
    heads: dict[tuple[bytes, str], bytes]
    """Request heads, keyed by the names of a sample's fields (from `split`) and its model in a mix."""
    extras: tuple[str, ...]
    has_ids: bool
    ends: bool
    """True if the endpoint reports why an answer ended."""


class OpenAiRemote:
    """One model on a server. Each request is one prompt, answered greedily (temperature 0) unless `body` changes the
    sampling.

    The dataset `prompts` provides the samples: token ids and texts go to /v1/completions, messages to
    /v1/chat/completions.

    served: the server's name for the model. Default: the manifest's name, else the server's only model.
    stream: with on, the server sends tokens as it generates them. The token times are measured on the stream.
    max_tokens: the maximum number of tokens in an answer, for samples that set no limit.
    ignore_eos: with on, the server generates max_tokens tokens even if the model would end earlier. vLLM and others
    support this field.
    answer: ids selects token ids, as vLLM returns them; text selects UTF-8; calls selects the tool calls as JSON, or
    the text if the model calls no tool. Default: ids if the server returns them, otherwise text.
    endpoint: responses is OpenAI's /v1/responses, messages is Anthropic's /v1/messages. By default, the samples
    determine the endpoint. Endpoints that do not return text (embeddings, pooling, rerank, transcriptions, speech,
    images) have separate options.
    cache_block: the number of tokens per block in the server's prefix cache (default 16). The harness computes the
    possible cache hits from this number.
    fresh: inserts the same text before all prompts of a run, so that the server's cache does not contain prompts of an
    earlier run. The text is new in each run (on) or drawn from SEED.
    body: fields of every request, e.g. {temperature: 0.7}, in YAML or JSON, or @FILE. The fields of a prompt
    override these fields.
    models: models or adapters of the server with their shares of the prompts, e.g. {base: 3, adapter: 1}.
    """

    def __new__(cls, setup: BackendSetup) -> Self:
        other = OTHERS.get(setup.options.get("endpoint", ""))
        return super().__new__(cls) if other is None else cast("Self", other(setup))

    def __init__(self, setup: BackendSetup) -> None:
        options = setup.options
        refuse([*setup_problems("openai", setup, _OPTIONS), *_wrong_values(options)])
        if setup.max_batch > 1:
            raise ConfigError("backend 'openai' sends one prompt per request: set --max-batch 1")
        self._setup = setup
        self._max_tokens = _number("max_tokens", options.get("max_tokens", str(MAX_TOKENS)))
        self._block_tokens = _number("cache_block", options.get("cache_block", str(BLOCK_TOKENS)))
        self._fresh = Fresh(options["fresh"]) if "fresh" in options else None
        self._body = added_fields(options["body"]) if "body" in options else {}
        self._mix: Mix | None = read_mix(options["models"]) if "models" in options else None
        self._wanted = options.get("answer")
        self._endpoint = ENDPOINTS.get(options.get("endpoint", ""))
        self._bound = self._endpoint.bound if self._endpoint else "max_tokens"
        self._headers = self._endpoint.headers if self._endpoint else _HEADERS
        self._paths = (
            _PATHS if self._endpoint is None else dict.fromkeys(_PATHS, self._endpoint.path)
        )
        self._reading = Reading(
            wants_text=self._wanted in ("text", "calls"),
            wants_calls=self._wanted == "calls",
            ignores_end=options.get("ignore_eos") == "on",
            stop_bytes=stop_bytes(self._body),
            endpoint=self._endpoint,
        )
        self.streams = options.get("stream", "on") == "on"
        """True if replies are read as they arrive."""
        self._dialects: dict[bool, _Dialect] = {}
        self._refusals: dict[bool, str] = {}
        self._asked: set[str] = {*self._mix.weights} if self._mix is not None else set()

    def open(self, exchange: Exchange) -> None:
        first = next(iter(self._mix.weights)) if self._mix is not None else None
        self._model, self._server = served(exchange, self._setup, first)
        for chat in _PATHS if self._endpoint is None else (True,):
            self._probe(exchange, chat)
        if not self._dialects:
            raise ConfigError(
                f"model {self._model!r} did not answer a one-word prompt: {self._tried()}"
            )
        if self._endpoint is not None:
            self._dialects[False] = self._dialects[True]
        for model in self._mix.weights if self._mix is not None else ():
            self._try_model(exchange, model)
        if self._wanted == "ids" and not all(d.has_ids for d in self._dialects.values()):
            raise ConfigError(
                "the server returns no token ids: drop --backend-option answer=ids to get text"
            )
        self._reading = self._reading._replace(
            needs_end=all(d.ends for d in self._dialects.values())
        )

    def _tried(self) -> str:
        """Returns the server's refusals, each with its path. If the server knows none of the paths, returns only the
        first refusal.
        """
        texts = {self._paths[chat]: text for chat, text in self._refusals.items()}
        if all(text.startswith(_NOT_THERE) for text in texts.values()):
            first = next(iter(texts.values()))
            return (
                f"{' and '.join(texts)}: {first}; if --url has a path, pass only http://HOST:PORT"
            )
        return "; ".join(f"{path}: {text}" for path, text in texts.items())

    def _probe(self, exchange: Exchange, chat: bool) -> None:
        """Sends test prompts to find out which prompts and fields the server accepts."""
        for nth, prompt in enumerate(_PROBES[chat]):
            for extras in self._extras():
                try:
                    self._dialects[chat] = self._tested(exchange, chat, prompt, extras)
                except (Refused, BadAnswer) as e:
                    if nth == 0:
                        self._refusals[chat] = one_line(e)
                    if isinstance(e, Refused) and e.status in _NOT_UNDERSTOOD:
                        continue
                return  # answered, or refused for a reason that other fields cannot change

    def _tested(
        self, exchange: Exchange, chat: bool, prompt: Mapping[str, Any], extras: Mapping[str, Any]
    ) -> _Dialect:
        """Sends a test prompt. Raises Refused or BadAnswer if the server does not answer it."""
        fields_of_all = self._fields(extras)
        head = _head(fields_of_all)
        body = self._encoded(
            _probe_body(prompt, self._endpoint.least_tokens if self._endpoint else 2)
        )
        reading = self._reader(self._reading._replace(models=frozenset()))
        (answer,) = reading.answer(
            exchange(Request(self._paths[chat], self._headers, (head, body)))
        )
        self._heard(reading)
        bounded = {**fields_of_all, self._bound: self._max_tokens}
        has_ids = answer.dtype.kind == "i"
        ends = bool(reading.usage.finish_reason)
        return _Dialect(prompt, fields_of_all, head, _head(bounded), {}, (*extras,), has_ids, ends)

    def _try_model(self, exchange: Exchange, model: str) -> None:
        """Raises a ConfigError if a model in the mix does not answer."""
        request = self.probe()
        dialect = next(iter(self._dialects.values()))
        head = _head({**dialect.fields, "model": model})
        reader = self._reader(self._reading._replace(models=frozenset()))
        try:
            reader.answer(exchange(request._replace(body=(head, *request.body[1:]))))
        except (Refused, BadAnswer) as e:
            raise ConfigError(
                f"--backend-option models: the model {model!r} did not answer a one-word prompt: {one_line(e)}"
            ) from e
        self._heard(reader)

    def _extras(self) -> Sequence[Mapping[str, Any]]:
        """Returns the fields that only some servers accept, in order of preference."""
        if self._endpoint is not None:
            return ({"stream": True} if self.streams else {},)
        return fields() if self.streams else _UNSTREAMED

    def _fields(self, extras: Mapping[str, Any]) -> Mapping[str, Any]:
        ignore = {"ignore_eos": True} if self._reading.ignores_end else {}
        of_endpoint = self._endpoint.fields if self._endpoint else {}
        sampling = {name: v for name, v in self._sampling().items() if v is not None}
        return {"model": self._model, **of_endpoint, **sampling, **ignore, **extras}

    def _sampling(self) -> Mapping[str, Any]:
        """Returns the sampling fields of every request: temperature 0, unless `body` overrides it. A null in `body`
        removes a field, because some models do not accept a temperature.
        """
        return {"temperature": 0, **self._body}

    def _encoded(self, fields: bytes) -> bytes:
        return fields if self._endpoint is None else self._endpoint.encode(fields)

    def request(self, batch: Batch) -> Request:
        (rows,) = batch.inputs.values()
        sample = rows.reshape(-1)[0]
        if rows.size != 1 or not isinstance(sample, bytes) or sample[:2] != b'{"':
            raise ValueError(
                "backend 'openai' takes prompts, one per request: use --dataset prompts"
            )
        if self._fresh is not None:
            sample = self._fresh.put(sample)
        names, fields = split(sample)
        is_bounded = sample.startswith(b'{"max_tokens":')
        # Inside a JSON string, a backslash precedes each quotation mark, so no text can look like this key.
        chat = (
            names.endswith(b'"messages"')
            if names
            else sample.startswith(_CHAT, sample.index(b",") + 1 if is_bounded else 1)
        )
        dialect = self._dialects.get(chat)
        if dialect is None:
            raise ConfigError(
                f"the prompts need {self._paths[chat]}, which the server refused: {self._refusals[chat]}"
            )
        if names or self._mix is not None:
            model = self._mix.model(sample) if self._mix is not None else ""
            if not names and is_bounded:
                names = b'"max_tokens"'
            head = dialect.heads.get((names, model)) or self._head_beside(dialect, names, model)
            self._expect_model(model_in(fields) or model)
            if b'"stop"' in names:
                self._expect_stop(stop_bytes(json.loads(b"{" + fields)))
        else:
            head = dialect.head if is_bounded else dialect.bounded_head
        return Request(self._paths[chat], self._headers, (head, self._encoded(fields)))

    def _head_beside(self, dialect: _Dialect, names: bytes, model: str) -> bytes:
        """Returns the head of the request body for samples that set the fields `names`. The head omits these fields.

        model: the sample's model in a mix; '' if the run has no mix.
        """
        own = {*json.loads(b"[%s]" % names)}
        fields = dict(dialect.fields)
        if model:
            fields["model"] = model
        if "max_tokens" not in own:
            fields[self._bound] = self._max_tokens
        head = _head({name: value for name, value in fields.items() if name not in own})
        dialect.heads[names, model] = head
        return head

    def model_of(self, batch: Batch) -> str:
        """Returns the model from the sample's fields, from the mix, or from the run."""
        (rows,) = batch.inputs.values()
        sample = rows.reshape(-1)[0]
        own = model_in(split(sample)[1])
        return own or (self._mix.model(sample) if self._mix is not None else self._model)

    def _expect_model(self, model: str) -> None:
        """Adds a sample's model to the names that a reply may report."""
        known = self._reading.models
        if model:
            self._asked.add(model)
        if model and known and model not in known:
            self._reading = self._reading._replace(models=known | {model})

    def _expect_stop(self, bytes_: int) -> None:
        """Records the length of the longest stop string, because the token count of an answer may include a stop
        string.
        """
        if bytes_ > self._reading.stop_bytes:
            self._reading = self._reading._replace(stop_bytes=bytes_)

    def probe(self) -> Request:
        """Returns a one-word prompt whose answer has one token."""
        chat, dialect = next(iter(self._dialects.items()))
        tokens = 1 if self._endpoint is None else self._endpoint.least_tokens
        body = self._encoded(_probe_body(dialect.prompt, tokens))
        return Request(self._paths[chat], self._headers, (dialect.head, body))

    def sent(self, batch: Batch) -> Sent:
        (rows,) = batch.inputs.values()
        sample = rows.reshape(-1)[0]
        if self._fresh is not None:
            sample = self._fresh.put(sample)
        fields = json.loads(sample)
        prompt = fields.get("prompt")
        template = BEGIN_TOKENS if "prompt" in fields else TEMPLATE_TOKENS
        most = fields.get("max_tokens", self._max_tokens)
        least = most if self._reading.ignores_end else {**self._body, **fields}.get("min_tokens")
        return Sent(
            len(prompt) if isinstance(prompt, list) else None,
            len(sample) + template,
            most,
            prompt if isinstance(prompt, list) else None,
            self._block_tokens,
            text_bytes(fields) // MOST_TOKEN_BYTES,
            least if isinstance(least, int) else 0,
            demands_call({**self._body, **fields}),
            hash(sample),
        )

    def answer(self, reply: Reply, samples: int) -> list[Array]:
        """Reads an answer that arrives before the run. Accepts a truncated answer, because even a truncated answer
        warms up the server. During the run, `reader` refuses truncated answers.
        """
        reader = self._reader(self._reading._replace(takes_any_end=True, models=frozenset()))
        answers = reader.answer(reply)
        self._heard(reader)
        return answers

    def _heard(self, reader: Streamed | Completion) -> None:
        """Collects the model's names during the warm-up, because replicas may report different names, such as the path
        of the file.
        """
        if reader.model:
            models = self._reading.models | {reader.model}
            self._reading = self._reading._replace(models=models)

    def reader(self) -> Streamed | Completion:
        return self._reader(self._reading)

    def _reader(self, reading: Reading) -> Streamed | Completion:
        return Streamed(reading) if self.streams else Completion(reading)

    def describe(self) -> Mapping[str, object]:
        return {
            "framework": self._server,
            "protocol": "OpenAI over HTTP",
            "device": "remote",
            "precision": "unknown",
            "model": self._model,
            "answers_as": sorted(self._reading.models),
            "asked_as": sorted({self._model, *self._asked}),
            "stream": "on" if self.streams else "off",
            "max_tokens": self._max_tokens,
            "max_tokens_from": "option" if "max_tokens" in self._setup.options else "default",
            "ignore_eos": self._setup.options.get("ignore_eos", "off"),
            "body": self._sampling(),
            **({"fresh": self._fresh.seed} if self._fresh is not None else {}),
            **({"models": dict(self._mix.weights)} if self._mix is not None else {}),
            "draws_tokens": draws_tokens(self._body),
            "endpoints": {
                self._paths[chat]: {
                    "extras": [*d.extras],
                    "answers": "ids" if d.has_ids else "text",
                }
                for chat, d in self._dialects.items()
            },
        }


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**31):
        raise ConfigError(f"--backend-option {name}: {text!r} is not a number of at least 1")
    return int(text)


def _wrong_values(options: Mapping[str, str]) -> Iterator[str]:
    """Yields a problem for each value that cannot be used. Empty values are left to `setup_problems`."""
    for name, choices in _CHOICES.items():
        if (options.get(name) or choices[0]) not in choices:
            yield f"--backend-option {name}: {options[name]!r} is not one of {', '.join(choices)}"
    readers: Mapping[str, Callable[[str], object]] = {
        "max_tokens": partial(_number, "max_tokens"),
        "cache_block": partial(_number, "cache_block"),
        "body": added_fields,
        "models": read_mix,
    }
    for name, read in readers.items():
        if options.get(name):
            try:
                read(options[name])
            except ConfigError as e:
                yield str(e)


def _probe_body(prompt: Mapping[str, Any], tokens: int) -> bytes:
    """Returns the part of a test request that a sample would add."""
    return json.dumps({**prompt, "max_tokens": tokens}, separators=(",", ":")).encode()[1:]


def _head(fields: Mapping[str, Any]) -> bytes:
    """Returns a JSON object without its closing brace. The caller appends the fields of the sample."""
    return json.dumps(fields, separators=(",", ":")).encode()[:-1] + b","


_: type[Remote] = OpenAiRemote
