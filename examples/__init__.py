"""Examples of Loom. Each folder is one example and contains everything that it needs."""
