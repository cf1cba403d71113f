"""Ways for two workers to hold the weights of one model once."""
