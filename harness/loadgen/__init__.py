"""All LoadGen code: binding, load plan, schedule, user.conf and logs."""
