"""Matrix products and convolutions of each installed library."""
