"""Makes gRPC calls, and checks the certificates of gRPC servers."""
