"""Matrix products and convolutions in each installed library."""
