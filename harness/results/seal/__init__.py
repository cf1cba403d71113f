"""The seal of a result folder: digests of its files, and a signature of the digests."""
