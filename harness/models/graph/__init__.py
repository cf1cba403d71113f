"""The graph of an ONNX file: nodes, shapes, wiring, multiplications and bytes."""
