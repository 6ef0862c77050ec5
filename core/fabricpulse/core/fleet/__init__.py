"""Who is in the fleet: hosts, their NICs, the rails (networks) that the NICs are on."""
