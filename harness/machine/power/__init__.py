"""Power and energy: meters, and the energy of the measured window."""
