"""Ways to send a payload to another process and back."""
