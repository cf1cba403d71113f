"""The systems under test, which answer LoadGen's queries in the measured process."""
