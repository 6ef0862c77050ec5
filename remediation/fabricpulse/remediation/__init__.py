"""Acting on alerts: a receiver that decides, an agent on each host that carries out."""
