"""gRPC calls, and how they trust a server's certificate."""
