"""The exporter kit's HTTP side: /metrics, health, landing page, TLS and authentication."""
