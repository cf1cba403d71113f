"""Plan: C_max, regions, points, passes and hours, and a rehearsal with the harness's client."""
