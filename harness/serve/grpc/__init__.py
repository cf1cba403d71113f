"""Serves the Open Inference Protocol over gRPC. The HTTP handler processes the requests."""
