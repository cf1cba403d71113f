"""Plans C_max, regions, points, passes and hours, and rehearses them with the harness's client."""
