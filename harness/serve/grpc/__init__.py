"""The Open Inference Protocol over gRPC, answered by the handler of HTTP."""
