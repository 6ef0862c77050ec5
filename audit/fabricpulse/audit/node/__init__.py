"""The audit agent of a host: runs the checks when it is asked, keeps the last reports."""
