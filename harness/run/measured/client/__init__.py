"""The client of runs with a server: connections, dispatcher, and the client's own limits."""
