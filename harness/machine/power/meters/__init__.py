"""One power meter a module (entry-point group `harness.meters`)."""
