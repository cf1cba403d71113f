import time

from harness.types import PowerSource


class Lamp:
    """Counts the energy of a 40 W lamp in joules."""

    def __init__(self, argument):  # argument: the text after `NAME=` in --meter
        self.watts = float(argument or 40)

    def __enter__(self):
        self.start = time.monotonic()
        return self

    def __exit__(self, *exc):
        pass

    def sources(self):
        return [PowerSource("lamp", "the desk lamp", "J", provenance="estimated")]

    def read(self):  # returns a number or an exception for each source
        return [self.watts * (time.monotonic() - self.start)]
