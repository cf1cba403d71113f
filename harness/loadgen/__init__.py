"""Who issues queries and when: the binding of LoadGen, its plan, schedule and logs."""
