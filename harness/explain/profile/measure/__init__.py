"""The measurements of a profile: calls, layers, counters, memory."""
