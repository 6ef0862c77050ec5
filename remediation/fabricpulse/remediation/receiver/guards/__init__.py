"""Guards: what may stop an action. Pure."""
