"""Checks of the audit that need more than one host: each module is one check, with its page and its test."""
