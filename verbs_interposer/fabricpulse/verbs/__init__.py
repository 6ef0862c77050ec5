"""The verbs interposer: how to load it, and what it sees. The library is in verbs_interposer/src."""
