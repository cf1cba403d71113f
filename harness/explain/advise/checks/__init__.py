"""Independent checks of weights, storage formats, operators and reruns."""
