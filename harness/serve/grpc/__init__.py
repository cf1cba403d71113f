"""The Open Inference Protocol over gRPC, by the handler of HTTP."""
