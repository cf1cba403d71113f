"""Power meters, one a module (entry-point group `harness.meters`)."""
