"""What comes with the programs and is to be put elsewhere: units, sample configurations, runbooks, the mixin."""
