"""Kernel interfaces that are not files: ethtool, DCB, module EEPROM, the kernel log, verbs events."""
