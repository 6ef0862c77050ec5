"""The collectors: a module each, which declares its metrics and registers itself. Adding one touches no other file."""
