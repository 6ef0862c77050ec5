"""What fabricpulse exports: the catalogue of metrics and the writer of the exposition."""
