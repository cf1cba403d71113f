"""gRPC calls and the trust in server certificates."""
