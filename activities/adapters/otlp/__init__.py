"""OpenTelemetry's protocol, with its official exporter, which is imported when a worker is set to export traces."""
