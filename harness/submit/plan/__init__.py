"""Plans and executes the runs that a submission needs."""
