"""Real-time streams: the sequence that each stream plays, and the answers to its frames."""
