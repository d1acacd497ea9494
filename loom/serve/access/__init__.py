"""Who calls, and what they may do: roles, tokens, JWTs and approval policies."""
