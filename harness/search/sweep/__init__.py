"""The verb `sweep` over rates: latency against load."""
