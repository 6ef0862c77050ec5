"""Netlink, as far as NICs need it: one client, one definition of the wire, a module for each family."""
