"""The flows of a fleet, and the components that each crosses. Pure."""
