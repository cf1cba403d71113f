"""Rules of MLPerf Endpoints, applied to a result tree."""
