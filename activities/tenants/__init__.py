"""Tenants' limits: how many of a tenant's runs are in progress at a time, and what they use in a day."""
