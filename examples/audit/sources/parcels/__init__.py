"""Parcels: prices, labels and tracking for a small shop that sends things by post."""

__version__ = "0.3.0"
