"""Code for LoadGen: its binding, the load plan, schedules, user.conf and logs."""
