"""The journal and the state beside it in SQLite or PostgreSQL."""
