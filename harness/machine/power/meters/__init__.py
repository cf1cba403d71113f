"""Power meters, one per module (entry-point group `harness.meters`)."""
