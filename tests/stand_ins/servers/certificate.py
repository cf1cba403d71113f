"""Makes an untrusted certificate for the name `localhost`."""

import shutil
import subprocess
from pathlib import Path

import pytest


def self_signed(folder: Path) -> Path:
    """Writes the key and the certificate to one PEM file, and the certificate alone to a second file with the suffix
    .crt.
    """
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    path = folder / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", str(path)]
    command += ["-addext", "subjectAltName=DNS:localhost", "-out", str(path.with_suffix(".crt"))]
    subprocess.run(command, check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + path.with_suffix(".crt").read_bytes())
    return path
