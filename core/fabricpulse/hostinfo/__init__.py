"""What the kernel reports about a host's NICs: sysfs, netlink, verbs, modules, its log. See README.md beside this."""
