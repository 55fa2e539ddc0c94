"""Who may come in, as whom, and how much they may ask: credentials, tenants, quotas, TLS."""
