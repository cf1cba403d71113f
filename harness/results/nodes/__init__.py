"""Runs on nodes: journals of the nodes and the driver, numbers, reasons and doubts."""
