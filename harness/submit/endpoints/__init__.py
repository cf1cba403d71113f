"""MLPerf Endpoints: plan, rehearse, drive, witness, check and pack a submission."""
