"""Single layers and the settings under which they are timed."""
