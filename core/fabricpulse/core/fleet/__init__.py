"""Membership: hosts of the fleet, their NICs, the rails (networks) of the NICs, the daemons and their ports."""
