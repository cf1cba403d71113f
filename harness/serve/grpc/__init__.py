"""Serves the Open Inference Protocol over gRPC. The handler for HTTP answers the requests."""
