"""What hosts have reported of their flows, kept for minutes, and what it says now. Pure."""
