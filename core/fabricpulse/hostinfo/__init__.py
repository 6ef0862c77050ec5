"""What a host says of its NICs: sysfs, netlink, verbs, modules, the kernel log. See README.md beside this file."""
