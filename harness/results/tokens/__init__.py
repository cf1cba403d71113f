"""What a language model on a server generated: tokens, and how fast."""
