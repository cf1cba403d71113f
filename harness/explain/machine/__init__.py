"""The verb `machine`: measures, stores, tabulates, draws and compares machines."""
