"""Pages about many runs: their history and their Pareto fronts."""
