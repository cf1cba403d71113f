"""Sends requests to servers and receives their replies: HTTP, connections, and the engines that use them."""
