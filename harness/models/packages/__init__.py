"""Model files from packages of package indexes: names, downloads of archives, files read from them as data."""
