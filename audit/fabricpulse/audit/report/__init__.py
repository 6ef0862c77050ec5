"""A run for people and programs: terminal, HTML, JUnit, labels, gate."""
