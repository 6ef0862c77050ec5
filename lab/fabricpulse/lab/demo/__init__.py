"""`fabricpulse demo`: a fault on a fleet of namespaces, seen, alerted, acted on and survived."""
