"""Room of the systems under test: what may answer LoadGen's queries in the measured process."""
