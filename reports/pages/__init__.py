"""Builds self-contained pages for runs, campaigns, studies and incidents; their parts; the server."""
