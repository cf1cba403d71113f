"""Seals a result folder with digests of its files and, optionally, a signature of the digests."""
