"""Sends samples over HTTP to services that take and return JSON of any structure."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from harness.backends.parts.http_json.answers import TEXT, Counted, Form, read
from harness.backends.parts.http_json.form import FormBody, is_form
from harness.backends.parts.http_json.pointer import Pointer
from harness.backends.parts.http_json.template import Rows, Template, bare_field, tree_of
from harness.backends.parts.refusals import refused
from harness.backends.parts.remote_options import answer_shape, setup_problems
from harness.core.formats.json_trees import compact
from harness.core.formats.kserve_tensors import DATATYPES
from harness.core.number_types import number_type
from harness.errors import ConfigError, one_line, refuse
from harness.remote import Exchange, Headers, JoinsSamples, Remote, Reply, Request
from harness.types import BackendSetup, Batch, Outputs

_OPTIONS = {
    "path": "/PATH",
    "method": "POST|PUT|PATCH",
    "content_type": "TYPE",
    "headers": "JSON|@FILE",
    "body": "JSON|@FILE",
    "sample": "JSON|@FILE",
    "answers": "/POINTER|#",
    "answer": "/POINTER|#",
    "dtype": f"NAME|{TEXT}",
    "shape": "SIZExSIZE",
    "tokens": "/POINTER",
}
_METHODS = ("POST", "PUT", "PATCH")
_JSON = "application/json"
_BODY = '{"instances":"{{samples}}"}'
_ANSWERS = "/predictions"
"""Defaults for body and answers: the protocol of TensorFlow Serving, which MLflow and KServe v1 also use."""

_OK = 200
_SHOWN_CHARACTERS = 200

V = TypeVar("V")
W = TypeVar("W")


class HttpJsonRemote:
    """One address of a service. The bytes of a sample are encoded when the sample is loaded. A request joins the bytes
    of its samples.

    path: the URL path of each request.
    method: the HTTP method of each request.
    content_type: the value of the header Content-Type. With a type other than JSON, body is a single placeholder, whose
    bytes are sent as the whole body. With multipart/form-data, body is an object of fields, and one field is a file
    made from the sample.
    headers: additional headers, as an object.
    body: the template of a request, with placeholders such as {{samples}} or {{image|png}}.
    sample: the template of one sample in {{samples}}. The default is the model's only input, or an object with all
    inputs.
    answers: the JSON pointer to the list of answers in the reply, in the order of the samples; # is the whole reply.
    answer: the JSON pointer to the answer within an item of `answers`, or within the reply if `answers` is not used.
    Default: #.
    dtype: the number type of the answers, or text.
    shape: the shape of one answer, such as `10` or `?x4`. By default, an answer is one number.
    tokens: the JSON pointer to the number of tokens in the reply, or to the list of tokens, for models whose
    performance MLPerf measures in tokens.
    """

    def __init__(self, setup: BackendSetup) -> None:
        refuse(setup_problems("http-json", setup, _OPTIONS))
        options = setup.options
        self._path = options.get("path", "/")
        if not self._path.startswith("/"):
            raise ConfigError(f"--backend-option path: {self._path!r} does not begin with /")
        self._method = options.get("method", _METHODS[0])
        if self._method not in _METHODS:
            raise ConfigError(
                f"--backend-option method: {self._method!r} is not one of {', '.join(_METHODS)}"
            )
        kind = options.get("content_type", _JSON)
        body = _parsed("body", tree_of, options.get("body", _BODY))
        self._shown_body = compact(body)
        self._whole: Callable[[Rows], tuple[bytes, ...]] | None = None
        if _is_json(kind):
            self._template = _template(setup, body)
        elif is_form(kind):
            files = _parsed("body", lambda tree: FormBody(tree, setup.inputs), body)
            kind, self._whole = files.content_type, files.pieces
        else:
            bare = _parsed("body", lambda tree: bare_field(tree, setup.inputs), body)
            self._whole = lambda rows: (bare.bare(rows),)
        self._headers: Headers = (("Content-Type", kind), *_headers(options.get("headers", "{}")))
        self._form = _form(options)
        self._check_batches(setup)
        self._counted: Callable[[], Counted] | None = None
        if "tokens" in options:
            if setup.max_batch > 1:
                raise ConfigError(
                    f"--backend-option tokens counts one answer per reply: drop --max-batch {setup.max_batch}"
                )
            tokens = _parsed("tokens", Pointer, options["tokens"])
            self.streams = False
            self.reader = self._counted = lambda: Counted(self._form, tokens)

    def _check_batches(self, setup: BackendSetup) -> None:
        if setup.max_batch == 1:
            return
        if self._whole is not None or not self._template.takes_lists:
            raise ConfigError(
                f"backend 'http-json' with this body sends one sample per request: drop --max-batch {setup.max_batch}, "
                "or make body list the samples with {{samples}} or {{NAME[]}}"
            )
        if self._form.answers is None:
            raise ConfigError(
                f"--max-batch {setup.max_batch} needs --backend-option answers=/POINTER, which finds the list of answers "
                "in a reply"
            )

    def open(self, exchange: Exchange) -> None:
        """Sends no request, because services do not describe themselves."""

    def pieces(self, batch: Batch) -> Sequence[bytes]:
        """Returns the bytes that fill the gaps of a request body for one sample."""
        (rows,) = _samples(batch)
        return self._whole(rows) if self._whole is not None else self._template.pieces(rows)

    def joined(self, samples: Sequence[Sequence[bytes]]) -> Request:
        """Returns the request for samples with these pieces."""
        body = tuple(samples[0]) if self._whole is not None else self._template.joined(samples)
        return Request(self._path, self._headers, body, self._method)

    def request(self, batch: Batch) -> Request:
        if self._whole is not None:
            return self.joined([self.pieces(batch)])
        return self.joined([self._template.pieces(rows) for rows in _samples(batch)])

    def answer(self, reply: Reply, samples: int) -> Outputs:
        if self._counted is not None:
            # Replies before the run are read as in the run, so that a wrong pointer is found before the run.
            return self._counted().answer(reply)
        if reply.status != _OK:
            raise refused(reply)
        return read(self._form, bytes(reply.body), samples)

    def describe(self) -> Mapping[str, object]:
        return {
            "framework": "unknown",
            "protocol": "JSON over HTTP",
            "device": "remote",
            "precision": "unknown",
            "path": self._path,
            "body": self._shown_body[:_SHOWN_CHARACTERS],
            "answer": str(self._form),
        }


def _samples(batch: Batch) -> list[Rows]:
    """Returns the rows of each sample; a row without dimensions stays an array."""
    shapes = {name: array.shape[1:] for name, array in batch.inputs.items()}
    return [
        {name: array[at : at + 1].reshape(shapes[name]) for name, array in batch.inputs.items()}
        for at in range(batch.size)
    ]


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == _JSON or kind.endswith("+json")


def _parsed(option: str, parse: Callable[[V], W], value: V) -> W:
    """Returns the parsed value of an option. Raises a ConfigError that names the option if the value is invalid."""
    try:
        return parse(value)
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"--backend-option {option}: {one_line(e)}") from None


def _headers(text: str) -> Headers:
    content = _parsed("headers", tree_of, text)
    if not isinstance(content, dict) or not all(isinstance(v, str) for v in content.values()):
        raise ConfigError(
            '--backend-option headers: the value is not an object of strings: write e.g. {"X-Version": "2"}'
        )
    return tuple((str(name), value) for name, value in content.items())


def _template(setup: BackendSetup, body: object) -> Template:
    sample = None
    if "sample" in setup.options:
        sample = _parsed("sample", tree_of, setup.options["sample"])
    return _parsed("body", lambda tree: Template(tree, sample, setup.inputs), body)


def _form(options: Mapping[str, str]) -> Form:
    answers = options.get("answers", None if "body" in options else _ANSWERS)
    place = None if answers is None else _parsed("answers", Pointer, answers)
    within = _parsed("answer", Pointer, options.get("answer", "#"))
    dtype = options.get("dtype", "float32")
    plain = dtype if dtype == TEXT else number_type(dtype)
    if plain != TEXT and (plain not in DATATYPES.values() or plain == "string"):
        have = ", ".join(name for name in DATATYPES.values() if name != "string")
        raise ConfigError(f"--backend-option dtype: {dtype!r} is not one of {have}, {TEXT}")
    shape = answer_shape(options["shape"], may_vary=True) if "shape" in options else ()
    if plain == TEXT and shape:
        raise ConfigError(
            "--backend-option shape: an answer with dtype=text is a single string: drop shape"
        )
    return Form(place, within, plain, shape)


_: type[Remote] = HttpJsonRemote
_joins: type[JoinsSamples] = HttpJsonRemote
