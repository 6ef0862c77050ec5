"""The checks of a host: one module each, with `CHECK` and `run(host)`; docs/checks has a page of each."""
