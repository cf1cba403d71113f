"""Plans and makes the runs that a submission needs."""
