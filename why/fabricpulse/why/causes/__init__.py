"""One cause a file: its title, what to do, and `find`, which says where the facts show it."""
