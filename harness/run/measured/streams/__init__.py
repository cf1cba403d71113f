"""Streams in real time: what each one plays, and how their frames are answered."""
