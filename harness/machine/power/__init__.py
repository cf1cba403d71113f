"""Power meters, and the energy of the measured window."""
