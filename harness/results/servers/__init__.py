"""What servers told of themselves during a run: `servers` of result.json."""
