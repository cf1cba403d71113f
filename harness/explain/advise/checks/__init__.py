"""Checks weights, storage formats, operators and the variation between reruns, independently of the advice."""
