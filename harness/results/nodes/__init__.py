"""Handles runs on nodes: joins the journals of nodes and driver, and derives numbers, reasons and doubts."""
