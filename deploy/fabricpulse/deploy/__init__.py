"""Files that are installed elsewhere: units, sample configurations, runbooks, the mixin; `fabricpulse status`."""
