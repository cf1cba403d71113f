"""Plans, rehearses, drives, witnesses, checks and packs a submission to MLPerf Endpoints."""
