"""From losses to the components that explain them most probably, and the names of these. Pure."""
