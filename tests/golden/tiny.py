"""The first 20 digits: small enough for golden accuracy logs."""

from harness.datasets.digits import DigitsDataset


class Tiny(DigitsDataset):
    def __len__(self) -> int:
        return 20
