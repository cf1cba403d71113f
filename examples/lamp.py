import time

from harness.types import PowerSource


class Lamp:
    """A lamp of 40 W that counts its energy in joules."""

    def __init__(self, argument):  # what follows `NAME=` in --meter
        self.watts = float(argument or 40)

    def __enter__(self):
        self.start = time.monotonic()
        return self

    def __exit__(self, *exc):
        pass

    def sources(self):
        return [PowerSource("lamp", "the desk lamp", "J", provenance="estimated")]

    def read(self):  # one number for each source, or an exception in its place
        return [self.watts * (time.monotonic() - self.start)]
