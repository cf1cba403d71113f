"""Writes form bodies with files (multipart/form-data, RFC 7578), which transcription services accept."""

import hashlib
from collections.abc import Sequence

from harness.backends.parts.http_json.fields import Field, dumps
from harness.backends.parts.http_json.template import Rows, bare_field
from harness.types import TensorSpec

KIND = "multipart/form-data"
_TYPES = {"wav": "audio/wav", "png": "image/png", "npy": "application/octet-stream"}


class FormBody:
    """A form with one file from the sample; its other fields are strings and numbers."""

    def __init__(self, body: object, inputs: Sequence[TensorSpec]) -> None:
        """Raises a ValueError with a one-line message if the body does not describe such a form."""
        if not isinstance(body, dict) or not body:
            raise ValueError(
                'the body of a form must be an object: write e.g. {"file": "{{audio|wav}}"}'
            )
        files = {name: v for name, v in body.items() if isinstance(v, str) and "{{" in v}
        if len(files) != 1:
            raise ValueError(f"a form has one placeholder, but this one has {len(files)}")
        ((self._name, placeholder),) = files.items()
        self._field: Field = bare_field(placeholder, inputs)
        # A digest of the fields replaces the usual random boundary, so that equal requests have equal bytes.
        boundary = hashlib.sha256(dumps(body)).hexdigest()[:32]
        self.content_type = f"{KIND}; boundary={boundary}"
        self._mark = f"--{boundary}".encode()
        self._head = b"".join(
            self._part(name, value) for name, value in body.items() if name != self._name
        )

    def _part(self, name: str, value: object) -> bytes:
        if isinstance(value, dict | list | None):
            raise ValueError(f"the form field {name!r} is neither a string nor a number")
        text = value if isinstance(value, str) else dumps(value).decode()
        head = f'Content-Disposition: form-data; name="{_quoted(name)}"\r\n\r\n{text}\r\n'
        return self._mark + b"\r\n" + head.encode()

    def pieces(self, rows: Rows) -> tuple[bytes, ...]:
        """Returns the complete body for one sample. Raises a ValueError if the sample cannot be encoded."""
        kind = self._field.form.partition("/")[0]
        head = f'Content-Disposition: form-data; name="{_quoted(self._name)}"'
        if kind in _TYPES:
            head += f'; filename="sample.{kind}"\r\nContent-Type: {_TYPES[kind]}'
        content = self._field.bare(rows)
        part = self._mark + b"\r\n" + head.encode() + b"\r\n\r\n" + content + b"\r\n"
        return (self._head + part + self._mark + b"--\r\n",)


def is_form(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == KIND


def _quoted(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
