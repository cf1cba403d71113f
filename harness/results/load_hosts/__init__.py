"""What a result says of the hosts that shared the load of a run."""
