"""Handles runs on nodes: joins the nodes' journals with the driver's, and derives numbers, reasons and doubts."""
