"""Many runs for one answer: peak, sweep, grid, tune, repeats."""
