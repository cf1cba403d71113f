"""Makes grpcio trust only the certificate that the harness received in a first handshake.

grpcio cannot skip the check of the server's name and, unlike Python's ssl module, does not read the system's
certificates. A first connection therefore checks the server by the rules of https:// (or not at all, with --insecure),
and pins the server's certificate.
"""

import ssl
from typing import Any

from harness.wire.connections import Connection, Server, connect

Options = tuple[tuple[str, Any], ...]


def pinned(grpc: Any, server: Server, first: Connection, timeout_s: float) -> tuple[Any, Options]:
    """Returns the credentials and options for a channel. Raises the same errors as `connect`.

    grpc: the grpcio module. first: an open connection to the server.
    """
    assert server.tls is not None
    address = server.address
    pem = ssl.DER_cert_to_PEM_cert(first.certificate())
    if server.tls.verify_mode == ssl.CERT_NONE:
        name = _name(server, pem, timeout_s)
        address = address._replace(host=name)
        options: Options = (("grpc.ssl_target_name_override", name),)
    else:
        options = ()
    authority = ("grpc.default_authority", address.authority)
    return grpc.ssl_channel_credentials(pem.encode()), (*options, authority)


def _name(server: Server, pem: str, timeout_s: float) -> str:
    """Returns a name in the certificate, which Python reports only for a trusted certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=pem)
    context.set_alpn_protocols(["h2"])
    again = connect(Server(address=server.address, tls=context), timeout_s)
    try:
        return again.certificate_name()
    finally:
        again.close()
