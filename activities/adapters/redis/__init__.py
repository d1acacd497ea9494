"""The live event stream, the bus and the transcript cache on Redis.

All of these modules use `connection`. `stream` writes and reads a run's tasks, `bus` and `consumer` deliver tasks to
subscribers, and `transcripts` caches the data that the next activity needs.
"""
