"""Matrix products and convolutions as each installed library computes them."""
