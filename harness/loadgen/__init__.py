"""All code for LoadGen: its binding, load plan, schedule, user.conf and logs."""
