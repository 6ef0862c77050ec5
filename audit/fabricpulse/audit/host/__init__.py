"""What is read of one host, and what it means."""
