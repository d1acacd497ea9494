"""Memory: memories of past runs in four layers, notes in four scopes, and knowledge bases.

`layers` defines the entries and the queries, and `content` and `importance` derive entries from a task. `scopes`
contains the notes that the runs in one tree share, `knowledge` and `chunks` handle documents, and `blended_search`
combines a search by words and a search by meaning.
"""
